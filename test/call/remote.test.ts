import { create } from "@bufbuild/protobuf";
import { describe, expect, onTestFinished, test } from "vitest";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  PermissionReply,
  PermissionResponseSchema,
  ToolEffects,
  ToolErrorReason,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Principal } from "../../src/core/principal.ts";
import { NotEntered } from "../../src/tool/errors.ts";
import { agent } from "../model/clients.ts";
import { startReplicas } from "../model/replicas.ts";
import { inSqlite } from "../model/stores.ts";
import { createTestWorker, type TestWorker } from "./remote-worker.ts";

const never = new AbortController().signal;
const leaseMs = 60_000;
const resumeMs = 30_000;
const ref = { sessionId: "ses_a", callId: "call_1" };
const person: Principal = { ...agent, id: "ann", lineage: ["ann"], roles: new Set(["approver"]) };

/** Starts a replica with a worker that is connected to none. */
async function start(worker: TestWorker) {
  const replicas = await startReplicas(
    { newContents: inSqlite, pace: [0] },
    { toolsOf: (gone, name) => [worker.toolOf(name, gone)], remoteToolsOf: worker.remoteToolsOf, onNews() {} },
  );
  onTestFinished(() => replicas.stop());
  await replicas.any().sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
  const name = () => replicas.names()[0] ?? "";
  const record = async () => {
    const found = await replicas.any().store.calls.getCall(ref.sessionId, ref.callId);
    if (!found) throw new Error("the call is not stored");
    return found;
  };
  return {
    replicas,
    name,
    record,
    connect: () => worker.connect(name()),
    open: (fields = {}) =>
      replicas.any().calls.open(agent, create(CallToolRequestSchema, { ...ref, tool: "deploy", input: {}, ...fields })),
    /** Kills the replica as SIGKILL does; another one takes its place. */
    kill: () => replicas.kill(name()),
    adopt: (mark: Parameters<ReturnType<typeof replicas.any>["calls"]["adopt"]>[1]) =>
      replicas.any().calls.adopt(ref, mark),
    async ended() {
      const { calls } = replicas.any();
      return (await calls.wait(await record(), 5_000, never)).part.state;
    },
  };
}

const isAdopted = (ctx: { remote?: { isAdopted: boolean } | undefined }) => ctx.remote?.isAdopted === true;

describe("a call whose body a worker runs", () => {
  test("goes on after kill -9 of its replica, with the output so far, and is not entered again", async () => {
    const worker = createTestWorker();
    const { connect, open, kill, adopt, ended, record, replicas } = await start(worker);
    connect();
    await open();
    const body = await worker.body("call_1");
    body.ctx.metadata({ title: "deploying" });
    await body.ctx.output(Buffer.from("one "));
    expect(await body.ctx.remote?.stored()).toBe(4);
    const log = async () => (await replicas.any().store.calls.readLog("ses_a", 0, 65_536)).events;
    await expect.poll(async () => (await log()).some(({ event }) => event.case === "progress")).toBe(true);
    await kill();
    expect(await adopt(connect()())).toBe("adopted");
    expect(await record()).toMatchObject({ epoch: 2, attempts: 1, remote: { connection: 2 } });
    const again = await worker.body("call_1", isAdopted);
    expect(again.ctx.remote?.storedBytes).toBe(4);
    await again.ctx.output(Buffer.from("two"));
    again.end({});
    expect(await ended()).toMatchObject({ case: "completed", value: { output: "one two", title: "deploying" } });
    expect(worker.entered).toEqual(["call_1"]);
  });

  test("is lost only when its worker did not come back in time", async () => {
    const worker = createTestWorker();
    const { connect, open, kill, record, replicas, adopt } = await start(worker);
    const mark = connect();
    await open();
    const { assignment } = await worker.body("call_1");
    await kill();
    replicas.advance(resumeMs - 1);
    await replicas.any().calls.recover();
    expect((await record()).part.state.case).toBe("running");
    expect(worker.orphans).toMatchObject([ref]);
    replicas.advance(1);
    await replicas.any().calls.recover();
    const { state } = (await record()).part;
    const lost = { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN };
    expect(state).toMatchObject({ case: "error", value: lost });
    expect(await adopt({ ...mark(assignment), connection: 9 })).toBe("ended");
  });

  test("is not taken for one without a run while its run may still send the start", async () => {
    const worker = createTestWorker();
    const { connect, open, replicas, ended } = await start(worker);
    connect();
    await open();
    const body = await worker.body("call_1");
    replicas.advance(leaseMs);
    await replicas.any().calls.recover();
    expect(worker.orphans).toEqual([]);
    body.end({ output: "done" });
    expect(await ended()).toMatchObject({ case: "completed" });
  });

  test("runs again in another worker if its tool is idempotent, when its worker did not come back", async () => {
    const worker = createTestWorker({ idempotent: true });
    const { connect, open, kill, replicas, ended } = await start(worker);
    connect();
    await open();
    await worker.body("call_1");
    await kill();
    worker.bodies.clear();
    connect();
    replicas.advance(resumeMs - 1);
    await replicas.any().calls.recover();
    expect(worker.entered).toEqual(["call_1"]);
    replicas.advance(1);
    await replicas.any().calls.recover();
    (await worker.body("call_1")).end({ output: "done" });
    expect(await ended()).toMatchObject({ case: "completed" });
    expect(worker.entered).toEqual(["call_1", "call_1"]);
  });

  test("keeps its run when its worker connects to the same replica again", async () => {
    const worker = createTestWorker();
    const { connect, open, adopt, ended, record } = await start(worker);
    const first = connect();
    await open();
    const body = await worker.body("call_1");
    expect(await adopt(connect()())).toBe("adopted");
    expect(await record()).toMatchObject({ epoch: 2, remote: { connection: 2 } });
    // The first connection was replaced, and its messages come late.
    expect(await adopt(first())).toBe("foreign");
    await body.ctx.output(Buffer.from("done"));
    body.end({});
    expect(await ended()).toMatchObject({ case: "completed", value: { output: "done" } });
    expect(worker.entered).toEqual(["call_1"]);
  });

  test("is not given to another principal, process or run", async () => {
    const worker = createTestWorker();
    const { connect, open, adopt, record } = await start(worker);
    connect();
    await open();
    await worker.body("call_1");
    const mark = connect()();
    expect(await adopt({ ...mark, principal: "eve" })).toBe("foreign");
    expect(await adopt({ ...mark, instance: "wrk_2" })).toBe("foreign");
    expect(await adopt({ ...mark, assignment: "another" })).toBe("ended");
    expect(await record()).toMatchObject({ epoch: 1, remote: { connection: 1 } });
  });

  test("starts again if its worker never entered it, and the attempt does not count", async () => {
    const worker = createTestWorker();
    const { connect, open, kill, replicas, ended, record } = await start(worker);
    connect();
    worker.setDeaf(true);
    await open();
    await expect.poll(async () => (await record()).remote?.connection).toBe(1);
    const { remote } = await record();
    await kill();
    worker.setDeaf(false);
    const mark = connect()(remote?.assignment);
    expect(await replicas.any().calls.restartUnentered(ref, mark)).toBe(true);
    await replicas.any().calls.recover();
    (await worker.body("call_1")).end({ output: "done" });
    expect(await ended()).toMatchObject({ case: "completed" });
    expect(worker.entered).toEqual(["call_1"]);
    expect(await record()).toMatchObject({ attempts: 1 });
  });

  test("ends as cancelled instead of starting again, if that was asked before", async () => {
    const worker = createTestWorker();
    const { connect, open, kill, replicas, record } = await start(worker);
    connect();
    worker.setDeaf(true);
    await open();
    await expect.poll(async () => (await record()).remote?.connection).toBe(1);
    const { remote } = await record();
    await replicas.any().store.calls.requestCancel({ ...ref, root: "ses_a" }, "stop it");
    await kill();
    worker.setDeaf(false);
    expect(await replicas.any().calls.restartUnentered(ref, connect()(remote?.assignment))).toBe(true);
    await replicas.any().calls.recover();
    const value = { reason: ToolErrorReason.CANCELLED, effects: ToolEffects.NONE, error: "stop it" };
    expect((await record()).part.state).toMatchObject({ case: "error", value });
    expect(worker.entered).toEqual([]);
  });

  test("starts again if its worker refuses to enter it", async () => {
    const worker = createTestWorker();
    const { connect, open, ended, record } = await start(worker);
    connect();
    await open();
    const body = await worker.body("call_1");
    worker.bodies.clear();
    body.fail(new NotEntered("it has no capacity"));
    (await worker.body("call_1")).end({ output: "done" });
    expect(await ended()).toMatchObject({ case: "completed" });
    expect(await record()).toMatchObject({ attempts: 1 });
  });

  test("can be cancelled while it waits after its worker did not enter it, also without any worker", async () => {
    const worker = createTestWorker();
    const { connect, open, replicas, record } = await start(worker);
    connect();
    await open();
    const body = await worker.body("call_1");
    worker.connect("");
    body.fail(new NotEntered("it stops"));
    await expect.poll(async () => (await record()).owner).toBe("");
    const part = await replicas.any().calls.cancel(agent, ref.sessionId, ref.callId, "not needed");
    expect(part.state).toMatchObject({ value: { reason: ToolErrorReason.CANCELLED, effects: ToolEffects.NONE } });
  });

  test("is left by a replica that stops, and goes on at the next one", async () => {
    const worker = createTestWorker();
    const { connect, open, kill, adopt, ended, record, replicas } = await start(worker);
    connect();
    await open();
    await worker.body("call_1");
    const before = performance.now();
    await replicas.any().calls.drain(60_000);
    expect(performance.now() - before).toBeLessThan(30_000);
    expect(await record()).toMatchObject({ owner: "", part: { state: { case: "running" } } });
    await kill();
    expect(await adopt(connect()())).toBe("adopted");
    (await worker.body("call_1", isAdopted)).end({ output: "done" });
    expect(await ended()).toMatchObject({ case: "completed" });
    expect(worker.entered).toEqual(["call_1"]);
  });

  test("is cancelled after its replica was lost, if that was asked before", async () => {
    const worker = createTestWorker();
    const { connect, open, kill, adopt, ended, record, replicas } = await start(worker);
    connect();
    await open();
    await worker.body("call_1");
    await replicas.any().store.calls.requestCancel({ ...ref, root: "ses_a" }, "stop it");
    await kill();
    expect(await record()).toMatchObject({ cancel: "stop it" });
    expect(await adopt(connect()())).toBe("adopted");
    expect(await ended()).toMatchObject({
      case: "error",
      value: { reason: ToolErrorReason.CANCELLED, error: "stop it" },
    });
  });

  test("asks once, although its body asks again at the next replica with the same key", async () => {
    const worker = createTestWorker();
    const { connect, open, kill, adopt, ended, replicas } = await start(worker);
    connect();
    await open();
    const ask = { permission: "traffic", patterns: ["prod"] };
    const openAsks = () => replicas.any().store.permissions.openAsks({ limit: 10 });
    const body = await worker.body("call_1");
    body.ctx.ask(ask, undefined, "1").catch(() => {});
    await expect.poll(async () => (await openAsks()).length).toBe(1);
    await kill();
    expect(await adopt(connect()())).toBe("adopted");
    const again = await worker.body("call_1", isAdopted);
    const asked = again.ctx.ask(ask, undefined, "1");
    const [open1] = await openAsks();
    const permissionId = open1?.request.id ?? "";
    const answer = { sessionId: "ses_a", permissionId, reply: PermissionReply.ONCE };
    await replicas.any().calls.answer(person, "default", create(PermissionResponseSchema, answer));
    await asked;
    // Asked once more it is answered at once.
    await again.ctx.ask(ask, undefined, "1");
    again.end({ output: "done" });
    expect(await ended()).toMatchObject({ case: "completed" });
    expect(await replicas.any().store.permissions.asksOf({ ...ref, root: "ses_a" })).toHaveLength(1);
  });

  test("keeps its deadline over replicas, without the time in which it asked", async () => {
    const worker = createTestWorker();
    const { connect, open, kill, adopt, replicas, record } = await start(worker);
    connect();
    await open();
    const body = await worker.body("call_1");
    body.ctx.ask({ permission: "traffic", patterns: ["prod"] }, undefined, "1").catch(() => {});
    await expect.poll(async () => (await record()).part.permissionIds.length).toBe(1);
    replicas.advance(99_000);
    await kill();
    replicas.advance(20_000);
    expect(await adopt(connect()())).toBe("adopted");
    const again = await worker.body("call_1", isAdopted);
    expect(again.ctx.signal.aborted).toBe(false);
    expect(JSON.parse((await record()).memo ?? "{}")).toMatchObject({ pausedMs: 0 });
  });

  test("that ran out of time while its worker was away is stopped when that is back", async () => {
    const worker = createTestWorker();
    const { connect, open, kill, adopt, replicas, ended } = await start(worker);
    connect();
    await open();
    await worker.body("call_1");
    replicas.advance(100_000);
    await kill();
    expect(await adopt(connect()())).toBe("adopted");
    expect(await ended()).toMatchObject({ case: "error", value: { reason: ToolErrorReason.TIMEOUT } });
  });
});

describe("a call that no worker can run now", () => {
  test("waits without an owner and starts when a worker has capacity", async () => {
    const worker = createTestWorker({ capacity: 1 });
    const { connect, open, replicas, record, ended } = await start(worker);
    await open();
    await expect.poll(async () => (await record()).queuedUntil).toBeDefined();
    expect(await record()).toMatchObject({ owner: "", part: { state: { case: "pending" } } });
    replicas.advance(leaseMs - 1);
    await replicas.any().calls.recover();
    expect((await record()).part.state.case).toBe("pending");
    connect();
    replicas.any().calls.takeQueued();
    (await worker.body("call_1")).end({ output: "done" });
    expect(await ended()).toMatchObject({ case: "completed" });
    expect((await record()).queuedUntil).toBeUndefined();
  });

  test("ends UNAVAILABLE without effects when its time is over", async () => {
    const worker = createTestWorker();
    const { open, replicas, record, kill } = await start(worker);
    await open({ queueMs: 5_000 });
    await expect.poll(async () => (await record()).queuedUntil).toBeDefined();
    await kill();
    replicas.advance(4_999);
    await replicas.any().calls.recover();
    expect((await record()).part.state.case).toBe("pending");
    replicas.advance(1);
    await replicas.any().calls.recover();
    const value = { reason: ToolErrorReason.UNAVAILABLE, effects: ToolEffects.NONE };
    const error = expect.stringContaining("no worker of ci runs");
    expect((await record()).part.state).toMatchObject({ case: "error", value: { ...value, error } });
    expect(worker.entered).toEqual([]);
  });

  test("ends at once if it may not wait", async () => {
    const worker = createTestWorker();
    const { open, ended } = await start(worker);
    await open({ queueMs: 0 });
    expect(await ended()).toMatchObject({ case: "error", value: { reason: ToolErrorReason.UNAVAILABLE } });
  });

  test("asks meanwhile, and runs once when it is approved and a worker connects", async () => {
    const worker = createTestWorker();
    const { connect, open, replicas, record, ended } = await start(worker);
    await open({ input: { place: "prod" } });
    await expect.poll(async () => (await record()).part.permissionIds.length).toBe(1);
    const [permissionId = ""] = (await record()).part.permissionIds;
    const answer = { sessionId: "ses_a", permissionId, reply: PermissionReply.ONCE };
    await replicas.any().calls.answer(person, "default", create(PermissionResponseSchema, answer));
    await expect.poll(async () => (await record()).queuedUntil).toBeDefined();
    connect();
    replicas.any().calls.takeQueued();
    (await worker.body("call_1")).end({ output: "done" });
    expect(await ended()).toMatchObject({ case: "completed" });
    expect(worker.entered).toEqual(["call_1"]);
  });

  test("does not hold up the calls behind it while its worker is not offered it", async () => {
    const worker = createTestWorker({ capacity: 1 });
    const { connect, replicas, open } = await start(worker);
    connect();
    await open({ callId: "running" });
    const running = await worker.body("running");
    worker.paused.add("call_1");
    await open();
    await open({ callId: "behind" });
    await expect.poll(async () => (await replicas.any().store.calls.orphans()).length).toBe(2);
    running.end({});
    // The edge of workers reports capacity when a body has ended.
    const entered = () => {
      replicas.any().calls.takeQueued();
      return worker.entered.length;
    };
    await expect.poll(entered).toBe(2);
    worker.paused.clear();
    (await worker.body("behind")).end({});
    await expect.poll(entered).toBe(3);
    expect(worker.entered).toEqual(["running", "behind", "call_1"]);
  });

  test("starts when a body ends, of several session trees in turn", async () => {
    const worker = createTestWorker({ capacity: 1 });
    const { connect, open, replicas } = await start(worker);
    for (const id of ["ses_b", "ses_c"])
      await replicas.any().sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: id }));
    connect();
    await open();
    await worker.body("call_1");
    const waiting = async (sessionId: string, callId: string) => {
      await open({ sessionId, callId });
      const find = () => replicas.any().store.calls.getCall(sessionId, callId);
      await expect.poll(async () => (await find())?.queuedUntil).toBeDefined();
    };
    await waiting("ses_b", "b1");
    await waiting("ses_b", "b2");
    await waiting("ses_c", "c1");
    for (const [callId, count] of [
      ["call_1", 2],
      ["b1", 3],
      ["c1", 4],
    ] as const) {
      (await worker.body(callId)).end({ output: "done" });
      // The edge of workers reports capacity when a body has ended.
      const entered = () => {
        replicas.any().calls.takeQueued();
        return worker.entered.length;
      };
      await expect.poll(entered).toBe(count);
    }
    expect(worker.entered).toEqual(["call_1", "b1", "c1", "b2"]);
  });
});
