import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import type { Logger } from "../../src/core/logger.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import {
  addSession,
  answer,
  askMs,
  callRef,
  completed,
  day,
  escalationOf,
  logOf,
  type OpenedStore,
  openAskedCall,
  openEscalating,
  recordOf,
  startCall,
  stepMs,
} from "./fixture.ts";

const minute = 60_000;
const folders: string[] = [];
const open: OpenedStore[] = [];
afterAll(async () => {
  for (const store of open) await store.close().catch(() => {});
  for (const folder of folders) await rm(folder, { recursive: true });
});

/** A machine with a data directory, whose clock can jump. */
async function newMachine() {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-clock-"));
  folders.push(directory);
  let wall = Date.UTC(2026, 10, 23);
  let uptime = 0;
  let slept = 0;
  let current: OpenedStore | undefined;
  const logged: string[] = [];
  const note = (message: string) => void logged.push(message);
  const log: Logger = { debug: note, info: note, warn: note, error: note };
  const machine = {
    logged,
    jump(ms: number) {
      wall += ms;
    },
    pass(ms: number) {
      wall += ms;
      uptime += ms;
    },
    sleep(ms: number) {
      wall += ms;
      slept += ms;
    },
    /** Starts the service, after it was stopped for a time. */
    async start(stoppedMs = 0): Promise<OpenedStore> {
      await current?.close();
      wall += stoppedMs;
      uptime = 0;
      const store = await openSqliteStore({
        directory,
        clock: () => wall,
        uptime: () => uptime,
        sleep: () => slept,
        log,
      });
      const rest = { advance: machine.pass, reopen: () => machine.start(), close: store.calls.close };
      current = { ...store, ...rest };
      open.push(current);
      return current;
    },
  };
  return machine;
}

/** A store with a call that ended. */
async function startUsed(machine: Awaited<ReturnType<typeof newMachine>>): Promise<OpenedStore> {
  const store = await machine.start();
  await addSession(store);
  const ref = callRef();
  await store.calls.finishCall({ ref, guard: { fence: await startCall(store, ref) }, part: completed(ref) });
  await store.outputs.append("ses_root", "out_1", Buffer.from("output"));
  return store;
}

/** The number of events of the session, and the state of its call. */
async function contents(store: OpenedStore) {
  const call = await store.calls.getCall("ses_root", "call_1");
  return { events: (await logOf(store)).length, call: call?.expired ? "tombstone" : call?.part.state.case };
}
const whole = { events: 3, call: "completed" };

describe("retention", () => {
  test("removes nothing during one start with a clock that is 40 days ahead, nor afterwards", async () => {
    const machine = await newMachine();
    await startUsed(machine);
    const wrong = await machine.start(40 * day);
    await wrong.calls.sweep();
    expect(await contents(wrong)).toEqual(whole);
    expect(machine.logged.join("\n")).toContain("jumped by 40.0 days");
    expect(machine.logged.join("\n")).toContain("Nothing is removed because of 40.0 days of it");
    const right = await machine.start(minute - 40 * day);
    await right.calls.sweep();
    expect(await contents(right)).toEqual(whole);
    machine.pass(day);
    await right.calls.sweep();
    expect((await contents(right)).events).toBe(0);
    expect(machine.logged.at(-1)).toBe("removed after their retention time: 3 events");
  });

  test("trusts a long time without the service at the second start that finds it", async () => {
    const machine = await newMachine();
    await startUsed(machine);
    const first = await machine.start(40 * day);
    await first.calls.sweep();
    expect(await contents(first)).toEqual(whole);
    const second = await machine.start(minute);
    await second.calls.sweep();
    expect(await contents(second)).toEqual({ events: 0, call: undefined });
    expect(machine.logged.at(-1)).toBe(
      "removed after their retention time: 1 results, 1 tombstones, 3 events, 1 trees",
    );
  });

  test("trusts a weekend without the service", async () => {
    const machine = await newMachine();
    await startUsed(machine);
    const store = await machine.start(2.5 * day);
    await store.calls.sweep();
    expect(await contents(store)).toEqual({ events: 0, call: "completed" });
  });

  test("trusts only a few days of all jumps while the service runs, and all time that is measured", async () => {
    const machine = await newMachine();
    const store = await startUsed(machine);
    for (let jumps = 0; jumps < 20; jumps++) {
      machine.jump(2 * day);
      await store.calls.sweep();
    }
    expect(await contents(store)).toEqual({ events: 0, call: "completed" });
    machine.pass(8 * day);
    await store.calls.sweep();
    expect((await contents(store)).call).toBe("tombstone");
  });

  test("counts the time in which the machine sleeps, also every night", async () => {
    const machine = await newMachine();
    const store = await startUsed(machine);
    for (let nights = 0; nights < 7; nights++) {
      machine.sleep(day);
      await store.calls.sweep();
    }
    expect(machine.logged.filter((line) => line.includes("jumped"))).toEqual([]);
    expect((await contents(store)).call).toBe("tombstone");
  });

  test("follows a clock that is corrected slowly", async () => {
    const machine = await newMachine();
    const store = await startUsed(machine);
    for (let seconds = 0; seconds < 100; seconds++) {
      machine.jump(1_000);
      store.calls.now();
    }
    expect(machine.logged.filter((line) => line.includes("jumped"))).toEqual([]);
    expect(store.calls.now()).toBe(Date.UTC(2026, 10, 23) + 100_000);
  });
});

describe("an open permission request", () => {
  test.each([
    ["forwards", 20 * minute],
    ["by a year", 365 * day],
    ["backwards", -20 * minute],
  ])("keeps its remaining time when the clock jumps %s", async (_way, ms) => {
    const machine = await newMachine();
    const store = await machine.start();
    await addSession(store);
    await openAskedCall(store, callRef(), ["per_1"]);
    const before = (await store.permissions.findAsk("per_1"))?.request.expires ?? 0;
    machine.pass(minute);
    machine.jump(ms);
    expect(await store.permissions.dueAsks(10)).toEqual([]);
    await addSession(store, "ses_other");
    const { request } = (await store.permissions.findAsk("per_1")) ?? {};
    expect(request?.expires).toBe(before + ms);
    machine.pass(askMs - minute - 1);
    expect(await store.permissions.dueAsks(10)).toEqual([]);
    machine.pass(1);
    expect(await store.permissions.dueAsks(10)).toHaveLength(1);
  });

  test("takes its steps after the time that remained when the clock jumped", async () => {
    const machine = await newMachine();
    const store = await machine.start();
    await addSession(store);
    await openEscalating(store, callRef(), "per_1");
    for (const count of [1, 2]) {
      machine.pass(1_000);
      machine.jump(365 * day);
      await addSession(store, `ses_${count}`);
      machine.pass(stepMs - 1_001);
      expect(await store.permissions.dueAsks(10)).toEqual([]);
      machine.pass(1);
      expect(await store.permissions.dueAsks(10)).toHaveLength(1);
      expect(await store.permissions.escalate(await escalationOf(store, callRef(), "per_1"))).toBe(true);
    }
  });

  test("is answered after a jump, and its call goes on", async () => {
    const machine = await newMachine();
    const store = await machine.start();
    await addSession(store);
    await openAskedCall(store, callRef(), ["per_1"]);
    const accepted = (await recordOf(store, callRef())).spec.accepted;
    machine.jump(40 * day);
    expect(await store.permissions.settle(await answer(store, callRef(), "per_1"))).toMatchObject({ result: "won" });
    expect((await recordOf(store, callRef())).spec.accepted).toBe(accepted + 40 * day);
  });

  test("keeps its remaining time over a start with a clock that is 40 days ahead", async () => {
    const machine = await newMachine();
    const store = await machine.start();
    await addSession(store);
    await openAskedCall(store, callRef(), ["per_1"]);
    const again = await machine.start(40 * day);
    expect(await again.permissions.dueAsks(10)).toEqual([]);
    const back = await machine.start(-40 * day);
    machine.pass(askMs - 1);
    expect(await back.permissions.dueAsks(10)).toEqual([]);
    machine.pass(1);
    expect(await back.permissions.dueAsks(10)).toHaveLength(1);
  });

  test("expires while the service is stopped", async () => {
    const machine = await newMachine();
    const store = await machine.start();
    await addSession(store);
    await openAskedCall(store, callRef(), ["per_1"]);
    const again = await machine.start(askMs);
    expect(await again.permissions.dueAsks(10)).toHaveLength(1);
  });
});
