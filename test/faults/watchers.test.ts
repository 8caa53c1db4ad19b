import { readFile } from "node:fs/promises";
import { expect, test, vi } from "vitest";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { isTerminal } from "../../src/call/state.ts";
import { createHosts } from "./hosts.ts";
import { endsOf } from "./load.ts";
import { isLong } from "./report.ts";
import { longLeaseMs, startSystem } from "./system.ts";
import { conclude } from "./trial.ts";

test("F10 watchers that do not read cost the replica little memory, and do not delay the one that reads", async () => {
  const [watchers, megabytes] = isLong ? [100, 50] : [30, 20];
  const system = await startSystem({ count: 1, leaseMs: 10_000 });
  const replica = system.at(0);
  const memory = async () => {
    const [, resident = "0"] = (await readFile(`/proc/${replica.pid}/statm`, "utf8")).split(" ");
    return (Number(resident) * 4_096) / 1_048_576;
  };
  const sessionId = await createHosts(system).newSession();
  const agent = replica.as("caller");
  const make = (callId: string) => ({
    ...{ sessionId, callId, agent: "free", tool: "bash" },
    input: { command: `head -c ${megabytes}M /dev/zero | tr '\\0' x` },
  });
  const timed = async (callId: string) => {
    const begun = performance.now();
    let bytes = 0n;
    for await (const { event } of agent.tools.executeTool(make(callId))) {
      if (event?.event.case === "output") bytes += BigInt(event.event.value.data.length);
    }
    expect(Number(bytes)).toBe(megabytes * 1_048_576);
    return performance.now() - begun;
  };
  const alone = await timed("alone");
  const before = await memory();
  const leave = new AbortController();
  const stuck = await Promise.all(
    Array.from({ length: watchers }, async () => {
      const stream = replica.as("watcher").tools.watchSession({ sessionId }, { signal: leave.signal });
      const messages = stream[Symbol.asyncIterator]();
      await messages.next();
      return messages;
    }),
  );
  const beside = await timed("beside");
  const grown = (await memory()) - before;
  leave.abort();
  await Promise.allSettled(stuck.map((messages) => messages.next()));
  // Each may buffer 256 KiB; the rest is the normal growth of a process that moves so many bytes.
  expect(grown).toBeLessThan(watchers * 0.25 + 100);
  const seen = `${megabytes} MB read in ${Math.round(alone)} ms alone, ${Math.round(beside)} ms beside; ${Math.round(grown)} MiB more`;
  await conclude(system, createHosts(system), {
    fault: `F10 ${watchers} watchers that do not read`,
    faults: watchers,
    seen,
  });
});

test("F12 watchers that reconnect at all replicas see the same events, each once", async () => {
  const [watchers, calls] = isLong ? [1_000, 334] : [60, 170];
  const system = await startSystem({ leaseMs: longLeaseMs, settings: "[limits]\nrunning_calls = 100\n" });
  const hosts = createHosts(system);
  const sessionId = await hosts.newSession();
  const leave = new AbortController();
  const counts = Array.from({ length: watchers }, () => 0);
  const watching = counts.map((_, index) =>
    hosts.watch(sessionId, index, leave.signal, {
      onEvent: (count) => {
        counts[index] = count;
      },
      // One of five disconnects and reconnects at the next replica, about five times.
      leavesAfter: index % 5 === 0 ? Math.ceil((3 * calls) / 5) - (index % 50) : undefined,
    }),
  );
  const begun = performance.now();
  const parts: ToolPart[] = [];
  const echo = async (worker: number) => {
    for (let i = worker; i < calls; i += 10) {
      const call = { sessionId, callId: `c${i}`, tool: "echo", input: { text: `${i}` } };
      // CallTool returns after 30 s, on a busy machine before the end.
      let part: ToolPart | undefined;
      do ({ part } = await system.at(i).as("caller").tools.callTool(call));
      while (part && !isTerminal(part));
      if (part) parts.push(part);
    }
  };
  await Promise.all(Array.from({ length: 10 }, (_, worker) => echo(worker)));
  expect(endsOf(parts)).toBe(`${calls} completed`);
  const all = await hosts.logOf(sessionId);
  expect(all.length).toBe(3 * calls);
  await vi.waitUntil(() => counts.every((count) => count >= all.length), { timeout: isLong ? 900_000 : 240_000 });
  const seconds = (performance.now() - begun) / 1_000;
  leave.abort();
  await Promise.all(watching);
  const seen = `${watchers} watchers × ${all.length} events in ${seconds.toFixed(1)} s`;
  await conclude(system, hosts, { fault: "F12 watchers, a fifth of which reconnects", faults: watchers / 5, seen });
});
