import { expect, test, vi } from "vitest";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { points } from "./broken-store.ts";
import { createHosts } from "./hosts.ts";
import { endsOf } from "./load.ts";
import { isLong } from "./report.ts";
import { startSystem } from "./system.ts";
import { conclude } from "./trial.ts";

const rounds = isLong ? 20 : 1;

test("F1 kill -9 at each step of a call: it runs at most once, and another replica ends it", async () => {
  const system = await startSystem({ breaks: [["SIGKILL"]] });
  const hosts = createHosts(system);
  const [broken] = system.replicas;
  const sessionId = await hosts.newSession();
  const ends: ToolPart[] = [];
  for (let round = 0; round < rounds; round += 1) {
    for (const point of points) {
      const part = await untilStruck(async (attempt) => {
        const call = { sessionId, ticks: 10 };
        const [end] = await Promise.all([
          hosts.call({ ...call, callId: `c${round}-${attempt}.${point}`, at: 0, asks: canAsk(point) }),
          hosts.call({ ...call, callId: `beside${round}-${attempt}-${point}`, at: 1, asks: true }),
        ]);
        const isDead = await within(5_000, () => broken?.pid === undefined);
        return isDead ? end : undefined;
      });
      ends.push(part);
      await broken?.start();
    }
  }
  expect(new Set(ends.map(({ state }) => state.case))).toEqual(new Set(["completed", "error"]));
  await conclude(system, hosts, { fault: "F1 kill -9 at 9 steps", faults: rounds * points.length, seen: endsOf(ends) });
});

test("F2 a replica that freezes at a step of a call does nothing to it when it thaws", async () => {
  const system = await startSystem({ breaks: [["SIGSTOP"]] });
  const hosts = createHosts(system);
  const sessionId = await hosts.newSession();
  const broken = system.at(0);
  const ends: ToolPart[] = [];
  // Where a frozen replica could do harm when it goes on.
  const frozen = isLong ? points : points.filter((point) => /openAsks|startCall|before-(record|finish)/.test(point));
  for (let round = 0; round < rounds; round += 1) {
    for (const point of frozen) {
      const part = await untilStruck(async (attempt) => {
        const callId = `c${round}-${attempt}.${point}`;
        const ended = hosts.call({ sessionId, callId, at: 0, asks: canAsk(point), ticks: 80 });
        await Promise.race([ended, within(30_000, broken.isFrozen)]);
        const end = await ended;
        return (await broken.isFrozen()) ? end : undefined;
      });
      ends.push(part);
      broken.signal("SIGCONT");
      // It answers again, so whatever it had in hand has been sent.
      await hosts.insist(0, () => broken.as("watcher").sessions.getSession({ sessionId }, { timeoutMs: 4_000 }));
    }
  }
  await conclude(system, hosts, {
    fault: `F2 SIGSTOP at ${frozen.length} steps`,
    faults: rounds * frozen.length,
    seen: endsOf(ends),
  });
});

const canAsk = (point: string) => !["before-recordEvents", "before-finishCall", "after-finishCall"].includes(point);

/** On a slow machine a host may give a replica up before it comes to the step at which it is struck: then it has another call. */
async function untilStruck(attempt: (count: number) => Promise<ToolPart | undefined>): Promise<ToolPart> {
  for (let count = 1; count <= 5; count += 1) {
    const part = await attempt(count);
    if (part) return part;
  }
  throw new Error("no call of five came to the step at which the replica is struck");
}

const within = (timeout: number, holds: () => boolean | Promise<boolean>) =>
  vi.waitUntil(holds, { timeout }).catch(() => false);
