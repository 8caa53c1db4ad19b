import { create, type JsonObject } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { BeginCallRequestSchema, FinishCallRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { BeginOutcome } from "../../src/call/begin.ts";
import type { Hooks } from "../../src/tool/hooks.ts";
import { agent } from "../model/clients.ts";
import { callRef, callSpec, delegation, openCall } from "../store/fixture.ts";
import { startReplica, type TestReplicaOptions } from "./replica.ts";

/** Starts a replica to which an agent sends its own tools. */
async function startHosted(hooks: Hooks = {}, options: Partial<TestReplicaOptions> = {}) {
  const replica = await startReplica({ tools: [], ...options });
  replica.hooks.add("guard", hooks);
  const never = new AbortController().signal;
  return {
    ...replica,
    begin: (foreignTool: string, input: JsonObject, signal = never, foreignCallId = "c1"): Promise<BeginOutcome> =>
      replica.calls.begin(
        agent,
        create(BeginCallRequestSchema, {
          kind: "claude",
          foreignSession: "s1",
          foreignTool,
          foreignCallId,
          input,
          cwd: replica.directory,
          waitMs: 0,
        }),
        signal,
      ),
    report: (assignment: string, value: string) =>
      replica.calls.finish(agent, create(FinishCallRequestSchema, { assignment, result: { case: "output", value } })),
  };
}

/** Returns the assignment of a call that has begun. */
function assignmentOf(outcome: BeginOutcome): string {
  if (outcome.case !== "begun") throw new Error(`the call is ${outcome.case}`);
  return outcome.assignment;
}

test("before hooks rewrite the input that begins, permission hooks answer, and after hooks rewrite the report", async () => {
  const seen: unknown[] = [];
  const hosted = await startHosted({
    "tool.execute.before": ({ tool }, output) => {
      seen.push(tool);
      output.args.command = "make safe";
    },
    "permission.ask": ({ pattern }, output) => {
      output.status = pattern.includes("make safe") ? "allow" : "deny";
    },
    "tool.execute.after": (_, output) => {
      output.output = output.output.toUpperCase();
    },
  });
  const begun = await hosted.begin("Bash", { command: "make unsafe" });
  expect(begun).toMatchObject({ part: { state: { value: { input: { command: "make safe" } } } } });
  expect(seen).toEqual(["claude:Bash"]);
  expect(await hosted.report(assignmentOf(begun), "done")).toMatchObject({
    state: { case: "completed", value: { output: "DONE" } },
  });
});

test("a request that claims a call which asks meanwhile gives it back and goes on waiting", async () => {
  let isStale = false;
  const hosted = await startHosted(
    {},
    {
      through: ({ calls }) => ({
        async getCallWithAsks(ref) {
          const found = await calls.getCallWithAsks(ref);
          if (!isStale || !found) return found;
          isStale = false;
          return { ...found, record: { ...found.record, part: { ...found.record.part, permissionIds: [] } } };
        },
      }),
    },
  );
  const first = await hosted.begin("Bash", { command: "make" });
  isStale = true;
  const again = await hosted.begin("Bash", { command: "make" });
  expect(again).toMatchObject({ case: "waiting" });
  if (first.case !== "waiting" || again.case !== "waiting") return;
  expect(again.part.permissionIds).toEqual(first.part.permissionIds);
  const { sessionId, callId } = again.ref;
  expect(await hosted.store.calls.getCall(sessionId, callId)).toMatchObject({ owner: "", epoch: 2 });
});

test("a session has at most 1,000 open delegated calls", async () => {
  const hosted = await startHosted({
    "permission.ask": (_, output) => {
      output.status = "allow";
    },
  });
  const first = await hosted.begin("Read", { file_path: "a.txt" });
  if (first.case !== "begun") throw new Error(`the call is ${first.case}`);
  const { sessionId } = first.part;
  const others = Array.from({ length: 999 }, (_, id) => callRef(`o${id}`, sessionId, sessionId));
  await Promise.all(others.map((ref) => openCall(hosted.store, ref, { spec: callSpec({ delegated: delegation }) })));
  const last = () => hosted.begin("Read", { file_path: "b.txt" }, undefined, "c2");
  await expect(last()).rejects.toMatchObject({
    reason: ErrorReason.QUOTA_EXCEEDED,
    metadata: { limit: "delegated_calls" },
  });
  await hosted.report(first.assignment, "done");
  assignmentOf(await last());
});

test("a hook that throws stops the call before it begins", async () => {
  const hosted = await startHosted({
    "tool.execute.before": () => {
      throw new Error("not on Fridays");
    },
  });
  expect(await hosted.begin("Bash", { command: "make" })).toMatchObject({
    case: "refused",
    reason: ToolErrorReason.FAILED,
    message: expect.stringContaining("not on Fridays"),
  });
});

test("recovery, a drain and other replicas leave waiting and begun calls alone", async () => {
  const hosted = await startHosted({}, { leaseMs: 1_000 });
  const waiting = await hosted.begin("Bash", { command: "make" });
  if (waiting.case !== "waiting") throw new Error(`the call is ${waiting.case}`);
  const { sessionId, callId } = waiting.ref;
  const read = async () => await hosted.store.calls.getCall(sessionId, callId);
  const before = await read();
  expect(before).toMatchObject({ owner: "", part: { permissionIds: [expect.any(String)] } });
  for (let round = 0; round < 3; round++) {
    await hosted.calls.renew();
    await hosted.calls.recover();
  }
  await hosted.calls.drain(0);
  expect(await read()).toEqual(before);
});

test("a request whose client leaves while the call is planned starts nothing, and leaves the call to the next one", async () => {
  const left = new AbortController();
  const hosted = await startHosted({
    "permission.ask": (_, output) => {
      left.abort();
      output.status = "allow";
    },
  });
  await expect(hosted.begin("Bash", { command: "make" }, left.signal)).rejects.toThrow();
  assignmentOf(await hosted.begin("Bash", { command: "make" }));
});
