import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect, refusal } from "./clients.ts";
import { outputOf, read } from "./reading.ts";
import { useService } from "./service.ts";

const service = useService({ settings: "[limits]\noutput_bytes = 2_000_000" });
const lines = 20_000;
const whole = Array.from({ length: lines }, (_, i) => `${i + 1}\n`).join("");

/** A call that has printed more than a model is shown. */
async function bigOutput() {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const input = { command: `seq 1 ${lines}` };
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", agent: "free", tool: "bash", input }));
  const { state } = await stream.end();
  if (state.case !== "completed") throw new Error(`it ended in ${state.case}`);
  const output = state.value.metadata?.outputPath;
  if (typeof output !== "string") throw new Error("it has no outputPath");
  return { agent, sessionId, stream, result: state.value, output };
}

test("a model gets the truncated output and the name of the whole", async () => {
  const { result, output, stream } = await bigOutput();
  expect(Buffer.byteLength(result.output)).toBeLessThan(52_000);
  expect(result.output.split("\n").length).toBeLessThan(2_010);
  expect(result.output).toMatch(/\n20000\n?$/);
  expect(result.output).toContain(output);
  expect(result.metadata).toMatchObject({ truncated: true, originalSize: whole.length, outputPath: output });
  expect(outputOf(stream.seen)).toBe(whole);
});

test("the whole is read by bytes", async () => {
  const { agent, sessionId, output } = await bigOutput();
  const pieces: Uint8Array[] = [];
  for (let offset = 0n, end = false; !end; ) {
    const piece = await agent.tools.readToolOutput({
      sessionId,
      output,
      range: { case: "bytes", value: { offset, limit: 10_007 } },
    });
    expect(piece).toMatchObject({ offset, totalBytes: BigInt(whole.length) });
    pieces.push(piece.data);
    offset += BigInt(piece.data.length);
    end = piece.end;
  }
  expect(Buffer.concat(pieces).toString()).toBe(whole);
});

test("the whole is read by lines", async () => {
  const { agent, sessionId, output } = await bigOutput();
  const pieces: Uint8Array[] = [];
  for (let next = 1n; next !== 0n; ) {
    const range = { case: "lines", value: { offset: next, limit: 1_999 } } as const;
    const piece = await agent.tools.readToolOutput({ sessionId, output, range });
    pieces.push(piece.data);
    next = piece.nextLine;
  }
  expect(pieces).toHaveLength(Math.ceil(lines / 1_999));
  expect(Buffer.concat(pieces).toString()).toBe(whole);
});

test("the read tool shows any part of it to the model", async () => {
  const { agent, sessionId, output } = await bigOutput();
  const input = { filePath: output, offset: 777, limit: 2 };
  const { part } = await agent.tools.callTool({ sessionId, callId: "c2", tool: "read", input });
  expect(part?.state.case === "completed" && part.state.value.output).toContain("\n777: 777\n778: 778\n");
});

test("what is beyond its end, and what is not stored, is refused", async () => {
  const { agent, sessionId, output } = await bigOutput();
  const range = { case: "bytes", value: { offset: 1_000_000n } } as const;
  expect(await refusal(agent.tools.readToolOutput({ sessionId, output, range }))).toMatchObject({
    code: Code.OutOfRange,
    reason: "INVALID_RANGE",
    metadata: { total_bytes: String(whole.length) },
  });
  for (const unknown of ["toolgate-output:out_none", "../../store.db", "toolgate-output:../../../etc/passwd"]) {
    expect(await refusal(agent.tools.readToolOutput({ sessionId, output: unknown }))).toMatchObject({
      code: Code.NotFound,
      reason: "NO_SUCH_OUTPUT",
    });
  }
  const elsewhere = await agent.newSession();
  expect(await refusal(agent.tools.readToolOutput({ sessionId: elsewhere, output }))).toMatchObject({
    reason: "NO_SUCH_OUTPUT",
  });
});

test("output comes while the command runs, and can be read by then", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const go = `${sessionId}-go`;
  const input = { command: `echo first; until [ -e ${go} ]; do sleep 0.02; done; echo last` };
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", agent: "free", tool: "bash", input }));
  const piece = await stream.until("output");
  expect(Buffer.from(piece.data).toString()).toBe("first\n");
  const soFar = await agent.tools.readToolOutput({ sessionId, output: piece.output });
  expect(Buffer.from(soFar.data).toString()).toBe("first\n");
  // The command cannot end before this.
  await writeFile(join(service.workspace, go), "");
  expect((await stream.end()).state.value).toMatchObject({ output: "first\nlast\n" });
});

test("bytes that are no text arrive as they are", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const input = { command: "printf 'a\\377\\000b'" };
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", agent: "free", tool: "bash", input }));
  expect(Buffer.from((await stream.until("output")).data)).toEqual(Buffer.from([0x61, 0xff, 0x00, 0x62]));
  expect((await stream.end()).state.case).toBe("completed");
});

test("more output than can be kept ends the call, and what was kept can be read", async () => {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call = { sessionId, callId: "c1", agent: "free", tool: "bash", input: { command: "yes" } };
  const { part } = await agent.tools.callTool(call);
  const { state } = part ?? {};
  expect(state).toMatchObject({ case: "error", value: { reason: ToolErrorReason.OUTPUT_LIMIT } });
  const output = String(state?.case === "error" && state.value.metadata?.outputPath);
  const { totalBytes } = await agent.tools.readToolOutput({ sessionId, output });
  expect(Number(totalBytes)).toBeLessThanOrEqual(2_000_000);
  expect(Number(totalBytes)).toBeGreaterThan(1_000_000);
});
