import { setImmediate as nextTurn } from "node:timers/promises";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { ToolOutput } from "../../gen/opencode/tool/v1/event_pb.ts";
import { createCallOutput } from "../../src/call/output.ts";
import { OutputLimit } from "../../src/tool/errors.ts";
import type { Tool } from "../../src/tool/tool.ts";

/** Opens an output over a store in memory, with the events that were emitted. */
function open(keep: Tool["keep"], limit = 1_000_000) {
  const stored: Uint8Array[] = [];
  const emitted: ToolOutput[] = [];
  const output = createCallOutput({
    root: "ses_1",
    callId: "c1",
    id: "out_1",
    limit,
    keep,
    store: { append: async (_root, _id, data) => void stored.push(Uint8Array.from(data)) },
    record: async (pieces) => void emitted.push(...pieces),
  });
  return { output, emitted, whole: () => Buffer.concat(stored) };
}

const noticeOf =
  /\[(\d+) (lines?|bytes) (?:is|are) left out (below|above|here)\. The whole output has \d+ bytes: [^[]*toolgate-output:out_1[^[]*\]/;

const keeps = fc.record({
  end: fc.constantFrom("head" as const, "tail" as const, "both" as const),
  lines: fc.integer({ min: 2, max: 6 }),
  bytes: fc.integer({ min: 8, max: 40 }),
});
const texts = fc
  .array(fc.constantFrom("a", "bc", "é", "→", "😀", "\n", "\n\n", " "), { maxLength: 60 })
  .map((parts) => parts.join(""));

test("after a piece that could not be emitted, no later one is emitted behind the gap", async () => {
  const offsets: bigint[] = [];
  let failures = 0;
  const output = createCallOutput({
    ...{ root: "ses_1", callId: "c1", id: "out_1", limit: 1_000_000, keep: { end: "head", lines: 5, bytes: 100 } },
    store: { append: async () => {} },
    async record(pieces) {
      if (failures++ === 0) throw new Error("the store is away");
      offsets.push(...pieces.map(({ offset }) => offset));
    },
  });
  // Over the size from which on a piece is stored at once.
  const writing = output.write(Buffer.alloc(40_000));
  await output.write(Buffer.from("the rest"));
  await writing;
  await expect(output.end()).rejects.toThrow("the store is away");
  expect(offsets).toEqual([]);
});

test("an output is emitted once its bytes are stored, and not at all if storing them fails", async () => {
  const steps: string[] = [];
  const fields = { root: "ses_1", callId: "c1", id: "out_1", limit: 100 };
  const openOver = (append: () => Promise<void>) =>
    createCallOutput({
      ...fields,
      keep: { end: "head", lines: 5, bytes: 100 },
      store: { append },
      record: async () => void steps.push("emitted"),
    });
  const output = openOver(async () => {
    await nextTurn();
    steps.push("stored");
  });
  await output.write(Buffer.from("one"));
  await output.end();
  expect(steps).toEqual(["stored", "emitted"]);
  const failing = openOver(() => Promise.reject(new Error("the disk is full")));
  await expect(failing.write(Buffer.from("one")).then(() => failing.end())).rejects.toThrow("the disk is full");
  expect(steps).toEqual(["stored", "emitted"]);
});

describe("an output", () => {
  test("within the limits is shown whole; beyond them its ends, the size of the gap, and where to read the rest", async () => {
    await fc.assert(
      fc.asyncProperty(keeps, texts, async (keep, text) => {
        const { output, whole } = open(keep);
        const bounded = await output.whole(text);
        const over = Buffer.byteLength(text) > keep.bytes || text.split("\n").length - 1 > keep.lines;
        expect(bounded.truncated).toBe(over);
        expect(bounded.originalSize).toBe(Buffer.byteLength(text));
        if (!over) {
          expect(bounded.text).toBe(text);
          return;
        }
        expect(whole().toString()).toBe(text);
        const [notice = "", left, unit, where] = noticeOf.exec(bounded.text) ?? [];
        const [before = "", after = ""] = bounded.text.split(notice);
        const [start, rest] = [before.replace(/\n\n$/, ""), after.replace(/^\n\n/, "")];
        expect(where).toBe({ head: "below", tail: "above", both: "here" }[keep.end]);
        expect(text.startsWith(start) && text.endsWith(rest)).toBe(true);
        expect(keep.end === "head" ? rest : keep.end === "tail" ? start : "").toBe("");
        const shown = Buffer.byteLength(start) + Buffer.byteLength(rest);
        expect(bounded.truncatedSize).toBe(shown);
        expect(shown).toBeLessThanOrEqual(keep.bytes);
        expect(`${start}${rest}`.split("\n").length).toBeLessThanOrEqual(keep.lines + 1);
        expect(`${start}${rest}`.includes("\uFFFD")).toBe(false);
        if (unit === "bytes") expect(Number(left)).toBe(bounded.originalSize - shown);
        // Counts whole lines only: a line that is cut is not left out.
        const between = text.slice(start.length, text.length - rest.length);
        if (unit !== "bytes" && (keep.end === "tail" || between.startsWith("\n")) && between.endsWith("\n")) {
          const middle = keep.end === "tail" ? between : between.replace(/^\n/, "");
          expect(Number(left)).toBe(middle.split("\n").length - 1);
        }
      }),
      { numRuns: 500 },
    );
  });

  test("that is written in pieces is stored in order, emitted without gaps, and bounded the same", async () => {
    await fc.assert(
      fc.asyncProperty(keeps, fc.array(texts, { maxLength: 8 }), async (keep, pieces) => {
        const { output, emitted, whole } = open(keep);
        for (const piece of pieces) await output.write(Buffer.from(piece));
        await output.end();
        const text = pieces.join("");
        expect(whole().toString()).toBe(text);
        let next = 0n;
        for (const { offset, length } of emitted) {
          expect(offset).toBe(next);
          next += BigInt(length);
        }
        expect(Number(next)).toBe(Buffer.byteLength(text));
        const { text: once } = await open(keep).output.whole(text);
        expect(output.written().text).toBe(once);
      }),
      { numRuns: 300 },
    );
  });

  test("over its limit is refused, not cut", async () => {
    const { output } = open({ end: "tail", lines: 10, bytes: 100 }, 1_000);
    await output.write(Buffer.alloc(1_000));
    await expect(output.write(Buffer.alloc(1))).rejects.toThrow(OutputLimit);
  });
});
