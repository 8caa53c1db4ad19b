import { create } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PreviewSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { checkAttach } from "../../src/call/accept.ts";
import { askAboutLoop, cutPreview } from "../../src/call/decide.ts";
import { createBacklog, createCallOutput } from "../../src/call/output.ts";
import { boundOutput } from "../../src/call/settle.ts";
import { pendingPart } from "../../src/call/state.ts";

const part = pendingPart({
  id: "prt_1",
  sessionId: "ses_a",
  messageId: "msg_1",
  callId: "call_1",
  tool: "echo",
  agent: "build",
  input: {},
});
const spec = {
  principal: "agent",
  requestDigest: "same",
  timeoutMs: 0,
  providerId: "",
  modelId: "",
  definitionId: "",
  accepted: 0,
};
const record = {
  ref: { root: "ses_a", sessionId: "ses_a", callId: "call_1" },
  part,
  spec,
  openedSeq: 1,
  version: 1,
  epoch: 1,
  owner: "r1",
  attempts: 0,
  repeats: 0,
};

describe("attach", () => {
  test("accepts the same request", () => expect(() => checkAttach(record, "same")).not.toThrow());

  test("refuses another request under the same id", () =>
    expect(() => checkAttach(record, "other")).toThrow(
      expect.objectContaining({ reason: ErrorReason.CALL_ID_REUSED }),
    ));

  test("refuses a call of which only the tombstone is left", () =>
    expect(() => checkAttach({ ...record, expired: true }, "same")).toThrow(
      expect.objectContaining({ reason: ErrorReason.CALL_EXPIRED }),
    ));
});

describe("the doom loop check", () => {
  const plan = { title: "look", asks: [{ permission: "read", patterns: ["a.txt"] }] };

  test("leaves the first repeat alone", () =>
    expect(askAboutLoop(plan, { name: "look" }, { repeats: 1, request: {} })).toBe(plan));

  test("adds an ask to the second repeat", () =>
    expect(askAboutLoop(plan, { name: "look" }, { repeats: 2, request: { text: "x" } }).asks).toEqual([
      ...plan.asks,
      { permission: "doom_loop", patterns: ["look"], metadata: { tool: "look", input: { text: "x" }, repeats: 2 } },
    ]));

  test("shows the beginning of a large input", () => {
    const request = { text: "x".repeat(20_000) };
    const [, ask] = askAboutLoop(plan, { name: "look" }, { repeats: 2, request }).asks;
    expect(ask?.metadata?.input).toMatch(/^\{"text":"x{16375}… \(cut: it has 20011 characters\)$/);
  });
});

describe("bounding", () => {
  const output = () =>
    createCallOutput({
      root: "ses_a",
      callId: "call_1",
      id: "out_1",
      limit: 100,
      keep: { end: "head", lines: 10, bytes: 50 },
      store: { append: async () => {} },
      record: async () => {},
    });

  test("takes the returned text", async () => {
    expect(await boundOutput({ output: "returned" }, output())).toMatchObject({ text: "returned", outputPath: null });
  });

  test("takes the written output if no text was returned", async () => {
    const written = output();
    await written.write(Buffer.from("written"));
    await written.end();
    expect(await boundOutput({}, written)).toMatchObject({ text: "written", outputPath: "toolgate-output:out_1" });
  });
});

test("a preview is cut after the last whole line that fits", () => {
  const line = "+0123456789\n";
  const cut = cutPreview(create(PreviewSchema, { diff: line.repeat(20_000) }), "toolgate-output:out_1");
  expect(cut.url).toBe("toolgate-output:out_1");
  expect(cut.diff.length).toBeLessThanOrEqual(128 * 1024);
  expect(cut.diff).toBe(line.repeat(Math.ceil(cut.diff.length / line.length)).trimEnd());
});

test("bytes taken from a backlog stay valid while more are added", () => {
  const backlog = createBacklog(16);
  backlog.add(Buffer.from("first"));
  const taken = backlog.take();
  backlog.add(Buffer.from("second"));
  expect(String(taken)).toBe("first");
  backlog.release();
  expect(backlog.size).toBe(6);
  expect(String(backlog.take())).toBe("second");
});
