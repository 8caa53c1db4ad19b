import { create } from "@bufbuild/protobuf";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FilePartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { workerHooks } from "../../src/bodies/processes/process-source.ts";
import { openWorkerConnection, type WorkerConnection } from "../../src/bodies/worker-connection.ts";
import { workerTool } from "../../src/bodies/worker-tool.ts";
import { callTool, openTestWorkspace, planCall, type RunOptions } from "../../src/testing.ts";
import { ChangedAfterApproval, ExecutorLost, InvalidInput, ToolFailure } from "../../src/tool/errors.ts";
import { createHooks } from "../../src/tool/hooks.ts";
import type { OfferContext } from "../../src/tool/tool.ts";
import { startScripted } from "./start-scripted.ts";

const site = await openTestWorkspace();
let connection: WorkerConnection;
let kill: () => void;

beforeEach(async () => {
  const started = startScripted();
  kill = started.kill;
  connection = await openWorkerConnection(started, { files: ["a.ts"] });
});
afterEach(() => kill());

const host = () => ({
  name: "The tool process of a.ts",
  explain: () => undefined,
  use: <T>(work: (connection: WorkerConnection) => Promise<T>) => work(connection),
});

function toolNamed(name: string) {
  const declared = connection.hello.tools.find((tool) => tool.name === name);
  if (!declared) throw new Error(name);
  return workerTool(declared, host());
}

const call = (does: string, options?: RunOptions) => callTool(site, toolNamed("scripted"), { does }, options);

test("a body reports progress, output, attachments and its result", async () => {
  const text = await call("text");
  expect(text).toMatchObject({ output: "done", note: "noted", progress: [{ title: "half", metadata: { step: 1 } }] });
  const files = await call("files");
  expect(files).toMatchObject({ written: "one two", attachments: [{ mime: "image/png", filename: "a.png" }] });
  expect(files.attachments?.map((file) => ("data" in file ? Buffer.from(file.data).toString() : ""))).toEqual([
    "image",
  ]);
});

test("output with a gap, and a file that no call of the body returned, fail the call alone", async () => {
  await expect(call("gap")).rejects.toThrow("lost output: 0 bytes of it came");
  await expect(call("foreign")).rejects.toThrow("a file that no call of it returned");
  expect(await call("text")).toMatchObject({ output: "done" });
});

test("a failure has the kind that the process reports", async () => {
  await expect(call("expected")).rejects.toThrow(ToolFailure);
  await expect(call("changed")).rejects.toThrow(ChangedAfterApproval);
  await expect(call("input")).rejects.toThrow(InvalidInput);
  const defect = await call("defect").catch((error: unknown) => error);
  expect(defect).not.toBeInstanceOf(ToolFailure);
  expect(defect).toMatchObject({ message: "it failed" });
});

test("a body asks, stores state and makes calls; a refusal ends the call, and its body gets no answer", async () => {
  expect(await call("ask")).toMatchObject({ output: "allowed", asked: [{ permission: "deploy", patterns: ["x"] }] });
  const refuse = () => {
    throw new Error("refused");
  };
  await expect(call("ask", { onAsk: refuse })).rejects.toThrow("refused");
  const part = create(FilePartSchema, { url: "toolgate-output:out_2" });
  const onCalls = () => [
    { callId: "c", status: "completed" as const, title: "", text: "from read", attachments: [part] },
  ];
  expect(await call("calls", { onCalls })).toMatchObject({ output: "from read", attachments: [part] });
  const { output } = await call("state");
  expect(output).toBe("allowed");
  expect(site.state.get("n")).toBe("stored");
});

test("a cancelled body stops with the cause of the cancellation", async () => {
  const cancel = new AbortController();
  const running = call("wait", { signal: cancel.signal });
  cancel.abort(new Error("cancelled by a person"));
  await expect(running).rejects.toThrow("cancelled by a person");
  expect(await call("text")).toMatchObject({ output: "done" });
});

test.each([
  ["exit", "exit code 3"],
  ["garbage", "it sent what is no valid message"],
  ["huge", "it sent what is no valid message"],
  ["invalid", "it sent what is no valid message: report.assignment"],
  ["nothing", "it sent what is no valid message"],
])("a process that sends or does %s loses all calls whose bodies run in it", async (does, why) => {
  const other = call("wait").catch((error: unknown) => error);
  const lost = await call(does).catch((error: unknown) => error);
  expect(lost).toBeInstanceOf(ExecutorLost);
  expect(lost).toMatchObject({ message: expect.stringContaining(why) });
  expect(lost).toMatchObject({ message: expect.stringContaining("The tool process of a.ts ended while the call ran") });
  expect(await other).toBeInstanceOf(ExecutorLost);
});

test("a body whose report breaks a rule fails alone", async () => {
  const broken = await call("number").catch((error: unknown) => error);
  expect(broken).toBeInstanceOf(ToolFailure);
  expect(broken).toMatchObject({ message: expect.stringContaining("metadata.a is a number that JSON cannot hold") });
  expect(connection.ended.aborted).toBe(false);
});

test("a body that blocks its process and does not stop when it is cancelled ends the process", async () => {
  const cancel = new AbortController();
  const running = call("block", { signal: cancel.signal });
  const other = call("wait").catch((error: unknown) => error);
  cancel.abort(new Error("timed out"));
  await expect(running).rejects.toThrow("timed out");
  expect(await other).toBeInstanceOf(ExecutorLost);
  expect(connection.ended.reason.message).toContain("it hung");
});

test("a plan of the process is what the call asks, and its detail comes back at the start", async () => {
  const { plan, run } = await planCall(site, toolNamed("planned"), { does: "detail" });
  expect(plan).toMatchObject({
    title: "detail",
    asks: [{ permission: "deploy", patterns: ["detail"], always: ["*"] }],
  });
  expect(plan.contentDigest).toHaveLength(64);
  expect(await run()).toMatchObject({ output: "kept" });
  await expect(planCall(site, toolNamed("planned"), { does: "wrong" })).rejects.toThrow("nothing to plan");
});

test("a call of a tool without plans asks for its whole input, and the approval covers what its body asks", async () => {
  const { plan } = await planCall(site, toolNamed("scripted"), { does: "text" });
  expect(plan.asks).toMatchObject([{ permission: "scripted", coversBody: true, always: ["*"], wholeCall: true }]);
});

test("input that does not fit the schema never reaches the process", async () => {
  await expect(callTool(site, toolNamed("scripted"), {})).rejects.toThrow(InvalidInput);
});

test("the definition ID names the code of a tool", () => {
  const [declared] = connection.hello.tools;
  if (!declared) throw new Error("no tool");
  const idOf = (source: string) => workerTool({ ...declared, source }, host()).definition.definitionId;
  expect(idOf("s1")).toBe(toolNamed("scripted").definition.definitionId);
  expect(idOf("s2")).not.toBe(idOf("s1"));
});

test("a tool is described for each agent, and not offered to one for which it cannot be", async () => {
  const offer = (agent: string) => toolNamed("varied").describe?.({ agent } as OfferContext);
  expect(await offer("build")).toBe("For build.");
  expect(await offer("other")).toBeUndefined();
});

test("a hook changes its output in place, and one that fails stops the call", async () => {
  const hooks = createHooks();
  const [plugin] = connection.hello.plugins;
  if (!plugin) throw new Error("no plugin");
  hooks.add("guard", workerHooks(plugin, 0, host()), "default");
  const run = (tool: string, workspace = "default") =>
    hooks.in(workspace).run("tool.execute.before", { tool, sessionID: "s", callID: "c" }, { args: { a: 1 } });
  expect(await run("free")).toEqual({ args: { hooked: true } });
  await expect(run("guarded")).rejects.toThrow("of the plugin guard stopped this: it is guarded");
  expect(await run("guarded", "other")).toEqual({ args: { a: 1 } });
  kill();
  await expect(run("free")).rejects.toThrow("of the plugin guard stopped this: ");
});
