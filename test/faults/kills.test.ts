import { expect, test } from "vitest";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type Break, points, struckAt } from "./broken-store.ts";
import { createHosts } from "./hosts.ts";
import { endsOf, inParallel } from "./load.ts";
import { isLong } from "./report.ts";
import { startSystem } from "./system.ts";
import { conclude, holdsWithin, untilStruck } from "./trial.ts";

const rounds = isLong ? 10 : 1;

/** Replicas to strike, each in its own lane, before two intact ones. */
const lanes = isLong ? 6 : 3;
const startStruck = (how: Break, leaseMs: number) =>
  startSystem({ count: lanes + 2, leaseMs, breaks: Array.from({ length: lanes }, () => [how]) });

test("F1 kill -9 at each step of a call: it runs at most once, and another replica ends it", async () => {
  const system = await startStruck("SIGKILL", 2_000);
  const hosts = createHosts(system);
  const sessionId = await hosts.newSession(lanes);
  const ends: ToolPart[] = [];
  const steps = Array.from({ length: rounds }, () => points).flat();
  await inParallel([...steps.entries()], lanes, async ([index, point], lane) => {
    const broken = system.at(lane);
    const part = await untilStruck(async (attempt) => {
      const name = `c${index}-${attempt}`;
      const call = { sessionId, ticks: 10, answersAfter: answersAfter(point, lane) };
      const [end] = await Promise.all([
        hosts.call({ ...call, callId: struckAt(name, broken.pid, point), at: lane, asks: canAsk(point) }),
        hosts.call({ ...call, callId: `${name}-beside`, at: lanes, asks: true, answersAfter: lanes - 1 }),
      ]);
      const isDead = await holdsWithin(10_000, () => broken.pid === undefined);
      return isDead ? end : undefined;
    });
    ends.push(part);
    await broken.start();
  });
  expect(new Set(ends.map(({ state }) => state.case))).toEqual(new Set(["completed", "error"]));
  await conclude(system, hosts, {
    fault: `F1 kill -9 at ${points.length} steps`,
    faults: steps.length,
    seen: endsOf(ends),
  });
});

test("F2 a replica that freezes at a step of a call does nothing to it when it thaws", async () => {
  const system = await startStruck("SIGSTOP", 4_000);
  const hosts = createHosts(system);
  const sessionId = await hosts.newSession(lanes);
  const ends: ToolPart[] = [];
  // The points at which a frozen replica could do harm when it continues.
  const frozen = isLong ? points : points.filter((point) => /openAsks|startCall|before-(record|finish)/.test(point));
  const steps = Array.from({ length: rounds }, () => frozen).flat();
  await inParallel([...steps.entries()], lanes, async ([index, point], lane) => {
    const broken = system.at(lane);
    const part = await untilStruck(async (attempt) => {
      const callId = struckAt(`c${index}-${attempt}`, broken.pid, point);
      // The running command would continue for twice the lease.
      const ticks = point === "before-recordEvents" ? 160 : 2;
      const end = await hosts.call({
        ...{ sessionId, callId, ticks, at: lane },
        ...{ asks: canAsk(point), answersAfter: answersAfter(point, lane) },
      });
      return (await broken.isFrozen()) ? end : undefined;
    });
    ends.push(part);
    broken.signal("SIGCONT");
    // It answers again, so its pending steps have been sent.
    await hosts.insist(lane, () => broken.as("watcher").sessions.getSession({ sessionId }, { timeoutMs: 4_000 }));
  });
  await conclude(system, hosts, {
    fault: `F2 SIGSTOP at ${frozen.length} steps`,
    faults: steps.length,
    seen: endsOf(ends),
  });
});

const canAsk = (point: string) => !["before-recordEvents", "before-finishCall", "after-finishCall"].includes(point);

/** The intact replicas get the answers, except for a call that is struck when its answer starts it. */
const answersAfter = (point: string, lane: number) => (point.endsWith("startCall") ? lane - 1 : lanes - 1);
