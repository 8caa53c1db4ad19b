import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import * as z from "zod";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { startReplica, type TestReplicaOptions } from "./replica.ts";

const leaseMs = 60_000;

/** Suspends this process for longer than a lease, by its own clock. */
function suspend(): void {
  const now = performance.now();
  const spy = vi.spyOn(performance, "now").mockReturnValue(now + 2 * leaseMs);
  onTestFinished(() => spy.mockRestore());
}

/** Starts a replica with a tool that records its entries; before its hooks ran it is accepted only, so that the start mark is a step. */
async function start(
  through: TestReplicaOptions["through"],
  { planned = () => {}, isHooked = true, body = async (_: AbortSignal) => {} } = {},
) {
  const entries: string[] = [];
  const probe = defineTool({
    name: "probe",
    description: "Records that it was entered.",
    input: z.object({}),
    plan() {
      planned();
      return { title: "probe", asks: [] };
    },
    async execute(_, { signal }) {
      entries.push("entered");
      await body(signal);
      return { output: "done" };
    },
  });
  const replica = await startReplica({ tools: [probe], leaseMs, ...(through && { through }) });
  if (isHooked) replica.hooks.add("guard", { "tool.execute.before": () => {} });
  return { ...replica, entries };
}

describe("the body is not entered", () => {
  test("without a start mark of this replica: the store answers fenced", async () => {
    const { call, over, record, entries } = await start(() => ({ startCall: async () => "fenced" }));
    await call("probe");
    await over;
    expect(entries).toEqual([]);
    expect((await record()).part.state.case).toBe("pending");
  });

  test("and no start mark is written, by a replica whose lease may have lapsed while it planned", async () => {
    const startCall = vi.fn(async () => "started" as const);
    const { call, over, record, entries } = await start(() => ({ isShared: true, startCall }), { planned: suspend });
    await call("probe");
    await over;
    expect([entries, startCall.mock.calls]).toEqual([[], []]);
    expect((await record()).part.state.case).toBe("pending");
  });

  test.each([
    ["the start mark was written", true],
    ["the call was accepted and started in one step", false],
  ])("by a replica that was suspended while %s", async (_, isHooked) => {
    const { call, over, record, entries } = await start(
      ({ calls }) => ({
        isShared: true,
        async startCall(step) {
          const started = await calls.startCall(step);
          suspend();
          return started;
        },
        async openCall(step) {
          const opened = await calls.openCall(step);
          if (opened.record.attempts > 0) suspend();
          return opened;
        },
      }),
      { isHooked },
    );
    await call("probe");
    await over;
    expect(entries).toEqual([]);
    // Recovery ends it: no replica can know that the body was not entered.
    expect((await record()).part.state.case).toBe("running");
  });
});

test("the body is entered once if the start mark was written and only its answer was lost", async () => {
  const { call, over, record, entries } = await start(({ calls }) => ({
    async startCall(step) {
      await calls.startCall(step);
      return "fenced";
    },
  }));
  await call("probe");
  await over;
  expect(entries).toEqual(["entered"]);
  expect((await record()).part.state.case).toBe("completed");
});

test.each([
  ["a renewal no longer finds its call", "renew"],
  ["its lease lapsed without a renewal", "stopLapsed"],
] as const)("a body is stopped, and its result is not written, if %s", async (_, check) => {
  const [entered, stopped] = [Promise.withResolvers<void>(), Promise.withResolvers<string>()];
  const { call, calls, over, record } = await start(() => ({ isShared: true, renewLeases: async () => [] }), {
    async body(signal) {
      entered.resolve();
      await delay(600_000, undefined, { signal }).catch(() => stopped.resolve(signal.reason.name));
    },
  });
  await call("probe");
  await entered.promise;
  if (check === "stopLapsed") suspend();
  await calls[check]();
  await over;
  expect(await stopped.promise).toBe("CallGone");
  expect((await record()).part.state.case).toBe("running");
});

test("a call that another replica claimed while it asked neither asks again nor starts here", async () => {
  let isClaimed = false;
  const asks = vi.fn();
  const startCall = vi.fn(async () => "started" as const);
  const probe = defineTool({
    name: "probe",
    description: "Asks.",
    input: z.object({}),
    plan: () => ({ title: "probe", asks: [{ permission: "probe", patterns: ["door"] }] }),
    execute: () => ({ output: "done" }),
  });
  const { call, over, store } = await startReplica({
    tools: [probe],
    through: ({ calls }) => ({
      startCall,
      async openAsks(step) {
        asks();
        if (isClaimed) throw new Error("it asked again");
        return await calls.openAsks(step);
      },
      async getCallWithAsks(ref) {
        const found = await calls.getCallWithAsks(ref);
        if (!isClaimed || !found) return found;
        // The other replica has got its answers.
        found.record.part.permissionIds = [];
        return { record: { ...found.record, epoch: found.record.epoch + 1, owner: "r2" }, asks: [] };
      },
    }),
  });
  await call("probe");
  const ref = { root: "ses_a", sessionId: "ses_a", callId: "c1" };
  await expect.poll(async () => (await store.permissions.asksOf(ref)).length).toBe(1);
  isClaimed = true;
  // Any news of its session makes the run read its record.
  await store.calls.requestCancel(ref, "");
  await over;
  expect([asks.mock.calls.length, startCall.mock.calls.length]).toEqual([1, 0]);
});

test("a body that asked ends when another replica has claimed its call, whatever was answered", async () => {
  let isClaimed = false;
  const ends: string[] = [];
  const probe = defineTool({
    name: "probe",
    description: "Asks while it runs.",
    input: z.object({}),
    plan: () => ({ title: "probe", asks: [] }),
    async execute(_, { ask }) {
      await ask({ permission: "probe", patterns: ["door"] }).catch((error: Error) => {
        ends.push(error.name);
        throw error;
      });
      return { output: "done" };
    },
  });
  const { call, over, store } = await startReplica({
    tools: [probe],
    through: ({ calls }) => ({
      async getCallWithAsks(ref) {
        const found = await calls.getCallWithAsks(ref);
        if (!isClaimed || !found) return found;
        return { ...found, record: { ...found.record, epoch: found.record.epoch + 1, owner: "r2" } };
      },
    }),
  });
  await call("probe");
  const ref = { root: "ses_a", sessionId: "ses_a", callId: "c1" };
  const asks = () => store.permissions.asksOf(ref);
  await expect.poll(async () => (await asks()).length).toBe(1);
  isClaimed = true;
  // Any news of its session makes the run read its record.
  await store.calls.requestCancel(ref, "");
  await over;
  expect(ends).toEqual(["CallGone"]);
});

test("a started call whose lease lapsed ends as lost at the next renewal, and is not run again", async () => {
  const entered = Promise.withResolvers<void>();
  const { call, calls, over, record, entries } = await start(() => ({ isShared: true }), {
    async body(signal) {
      entered.resolve();
      await delay(600_000, undefined, { signal }).catch(() => undefined);
    },
  });
  await call("probe");
  await entered.promise;
  suspend();
  await calls.stopLapsed();
  await over;
  await calls.renew();
  expect((await record()).part.state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.EXECUTOR_LOST },
  });
  expect(entries).toEqual(["entered"]);
});

test("a started call whose end could not be recorded ends RESULT_NOT_STORED at the next renewal, and is not run again", async () => {
  let failures = 0;
  const { call, calls, over, record, entries } = await start(({ calls }) => ({
    async finishCall(step) {
      // The end and the report that it failed.
      if (failures++ < 2) throw new Error("the disk is full");
      return await calls.finishCall(step);
    },
  }));
  await call("probe");
  await over;
  expect((await record()).part.state.case).toBe("running");
  await calls.renew();
  expect((await record()).part.state).toMatchObject({
    case: "error",
    value: { reason: ToolErrorReason.RESULT_NOT_STORED },
  });
  expect(entries).toEqual(["entered"]);
});
