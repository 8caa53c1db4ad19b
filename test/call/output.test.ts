import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { ToolOutput } from "../../gen/opencode/tool/v1/event_pb.ts";
import { createCallOutput } from "../../src/call/output.ts";
import { OutputLimit } from "../../src/tool/errors.ts";

/** An output store in memory, and what watchers were told. */
function open(keep: { end: "head" | "tail"; lines: number; bytes: number }, limit = 1_000_000) {
  const stored: Uint8Array[] = [];
  const told: ToolOutput[] = [];
  const output = createCallOutput({
    root: "ses_1",
    callId: "c1",
    id: "out_1",
    limit,
    keep,
    store: {
      append: async (_root, _id, data) => void stored.push(data),
      read: async () => undefined,
      remove: async () => undefined,
    },
    record: async (pieces) => void told.push(...pieces),
  });
  return { output, told, whole: () => Buffer.concat(stored) };
}

const keeps = fc.record({
  end: fc.constantFrom("head" as const, "tail" as const),
  lines: fc.integer({ min: 1, max: 5 }),
  bytes: fc.integer({ min: 8, max: 40 }),
});
const texts = fc
  .array(fc.constantFrom("a", "bc", "é", "→", "😀", "\n", "\n\n", " "), { maxLength: 60 })
  .map((parts) => parts.join(""));

describe("an output", () => {
  test("is shown whole within the limits, else one end of it and where to read the rest", async () => {
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
        const notice =
          /\[[^[]*are left out (below|above)\. The whole output has \d+ bytes: [^[]*toolgate-output:out_1[^[]*\]/.exec(
            bounded.text,
          );
        expect(notice).not.toBeNull();
        const shown =
          keep.end === "head"
            ? bounded.text.slice(0, notice?.index).slice(0, -2)
            : bounded.text.slice(notice?.[0].length).slice(2);
        expect(Buffer.byteLength(shown)).toBeLessThanOrEqual(keep.bytes);
        expect(shown.split("\n").length).toBeLessThanOrEqual(keep.lines + 1);
        expect(keep.end === "head" ? text.startsWith(shown) : text.endsWith(shown)).toBe(true);
        expect(shown.includes("\uFFFD")).toBe(false);
      }),
      { numRuns: 500 },
    );
  });

  test("that is written in pieces is stored in order, told without gap, and bounded the same", async () => {
    await fc.assert(
      fc.asyncProperty(keeps, fc.array(texts, { maxLength: 8 }), async (keep, pieces) => {
        const { output, told, whole } = open(keep);
        for (const piece of pieces) await output.write(Buffer.from(piece));
        await output.end();
        const text = pieces.join("");
        expect(whole().toString()).toBe(text);
        let next = 0n;
        for (const { offset, length } of told) {
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
