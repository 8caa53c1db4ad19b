import { setTimeout as delay } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import { killIfAlive } from "../tools/processes.ts";
import { type Break, struckAt } from "./broken-store.ts";
import { stopMs, violations } from "./checker.ts";
import { createHosts } from "./hosts.ts";
import { startSystem } from "./system.ts";
import { untilStruck } from "./trial.ts";

// Each test disables one protection and expects the violation that the other tests check for: they can fail.

/** Starts two replicas; the first one can have a further break. */
async function startBroken(...breaks: [both: Break, first?: Break]) {
  const [both, first] = breaks;
  const system = await startSystem({ count: 2, breaks: [first ? [both, first] : [both], [both]] });
  return { system, hosts: createHosts(system) };
}

const beginning = (name: string) => expect.arrayContaining([expect.stringContaining(name)]);

test("without the rule that a started call is never started again, a kill makes a call run twice", async () => {
  const { system, hosts } = await startBroken("lost calls run again", "SIGKILL");
  const sessionId = await hosts.newSession();
  const callId = struckAt("c1", system.at(0).pid, "before-finishCall");
  await hosts.call({ sessionId, callId, at: 0, ticks: 4 });
  expect(violations(await hosts.finish())).toEqual(beginning(`I1: ${callId} ran `));
});

test("without the race for an ask, two answers win", async () => {
  const { hosts } = await startBroken("every answer wins");
  const sessionId = await hosts.newSession();
  await hosts.call({ sessionId, callId: "c1", at: 0, asks: true });
  expect(violations(await hosts.finish())).toEqual(beginning("I4: "));
});

test("without the check of answers, a call runs without approval", async () => {
  const { hosts } = await startBroken("asks need no answer");
  const sessionId = await hosts.newSession();
  // The approvers answer only once the call runs.
  const ran = Promise.withResolvers<void>();
  const beforeAnswer = () => ran.promise;
  const ended = hosts.call({ sessionId, callId: "c1", at: 0, asks: true, beforeAnswer });
  await vi.waitUntil(async () => (await hosts.ledger.lines()).length > 0, { timeout: 60_000 });
  ran.resolve();
  await ended;
  expect(violations(await hosts.finish())).toEqual(beginning("I3: c1 ran"));
});

test("without the memory of operations, a lost answer makes output appear twice or a call hang", async () => {
  const { system, hosts } = await startBroken("no operation ids");
  const found: unknown[] = [];
  // Lost answers are random.
  for (let round = 0; round < 20 && found.length === 0; round += 1) {
    const sessionId = await hosts.newSession();
    for (const { wire } of system.replicas) wire.loseAnswers(25);
    const calls = Array.from({ length: 20 }, (_, i) =>
      hosts.call({ sessionId, callId: `c${round}-${i}`, at: i, ticks: 1 }),
    );
    const parts = await Promise.all(calls);
    for (const { wire } of system.replicas) wire.loseAnswers(0);
    found.push(...violations(await hosts.finish()), ...parts.filter(({ state }) => state.case !== "completed"));
  }
  expect(found).not.toEqual([]);
});

test("without the check of its lease, a replica that thaws enters the body of an ended call", async () => {
  const { system, hosts } = await startBroken("leases are not watched", "SIGSTOP");
  const sessionId = await hosts.newSession();
  const { callId } = await untilStruck(async (attempt) => {
    const callId = struckAt(`c${attempt}`, system.at(0).pid, "after-startCall");
    const end = await hosts.call({ sessionId, callId, at: 0, ticks: 20 });
    return (await system.at(0).isFrozen()) ? end : undefined;
  });
  await delay(stopMs);
  system.at(0).signal("SIGCONT");
  const ran = async () => (await hosts.ledger.lines()).some((line) => line.callId === callId);
  await vi.waitUntil(ran, { timeout: 60_000 });
  expect(violations(await hosts.finish())).toEqual(beginning(`I9: ${callId}`));
});

test("without the supervisor, commands of a killed replica run on after their calls have ended", async () => {
  const system = await startSystem({ count: 2 });
  const hosts = createHosts(system);
  const sessionId = await hosts.newSession();
  const ended = hosts.call({ sessionId, callId: "c1", at: 0, ticks: 2_000 });
  await vi.waitUntil(async () => (await system.children()).length > 0, { timeout: 60_000 });
  // Frozen first; otherwise the replica would replace the supervisor.
  system.at(0).signal("SIGSTOP");
  process.kill(await system.supervisorOf(0), "SIGKILL");
  await system.at(0).kill();
  await ended;
  onTestFinished(async () => {
    for (const pid of await system.children()) killIfAlive(pid);
  });
  const late = Date.now() + stopMs;
  await vi.waitUntil(async () => ((await hosts.ledger.lines()).at(-1)?.time ?? 0) > late, { timeout: 60_000 });
  expect(violations(await hosts.finish())).toEqual(beginning("I9: c1 wrote"));
});

test("without the store's id, a retry after Redis was emptied runs the call again", async () => {
  const { system, hosts } = await startBroken("the store id never changes");
  const sessionId = `ses_${crypto.randomUUID()}`;
  const { sessions, tools } = system.at(0).as("caller");
  const expectedStoreId = (await tools.getServerInfo({})).storeId;
  const call = { sessionId, callId: "c1", tool: "bash", agent: "free", expectedStoreId };
  const run = async () => {
    await sessions.createSession({ sessionId, expectedStoreId });
    await tools.callTool({ ...call, input: { command: hosts.ledger.command("c1", 0) } });
  };
  await run();
  await system.emptyRedis();
  await hosts.insist(0, run);
  expect((await hosts.ledger.lines()).filter(({ word }) => word === "start")).toHaveLength(2);
});

test("a log without one of its events does not match what a watcher saw", async () => {
  const { hosts } = await startBroken("an event is left out");
  const sessionId = await hosts.newSession();
  await hosts.call({ sessionId, callId: "c1", at: 0, asks: true });
  expect(violations(await hosts.finish())).toEqual(beginning("I5: the log of"));
});
