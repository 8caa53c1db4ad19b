import { once } from "node:events";
import { createServer, connect as openSocket, type Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import { defineTool, serve, z } from "../../src/bodies/sdk/worker.ts";
import { connect } from "../../src/client/client.ts";
import { isLong, report } from "./report.ts";
import { longLeaseMs, startSystem } from "./system.ts";

const rounds = isLong ? 5 : 1;
const workerCount = isLong ? 10 : 3;
const callers = 6;
const settings = `
[[token]]
id = "worker"
roles = ["worker"]
tools = ["roll"]
value = "worker-token-for-tests"
[permission]
roll = "allow"
`;

test("F16 replicas and workers are restarted one after the other under load, and no call fails", async () => {
  const system = await startSystem({ leaseMs: longLeaseMs, settings });
  const url = await startBalancer(system.replicas);
  const runs = new Map<string, number>();
  const roll = defineTool({
    name: "roll",
    description: "Returns the text after a while.",
    input: z.object({ text: z.string() }),
    permissions: [{ patterns: ["{text}"] }],
    async execute({ text }) {
      runs.set(text, (runs.get(text) ?? 0) + 1);
      await delay((runs.size % 8) * 40);
      return { output: text };
    },
  });
  const startWorker = () => {
    const stop = new AbortController();
    const token = "worker-token-for-tests";
    const done = serve([roll], { url, token, worker: "roll", capacity: 4, signal: stop.signal, log: () => undefined });
    onTestFinished(() => stop.abort());
    return () => {
      stop.abort();
      return done;
    };
  };
  const workers = Array.from({ length: workerCount }, startWorker);
  for (const replica of system.replicas) {
    const { tools } = replica.as("caller");
    await vi.waitUntil(async () => (await tools.listTools({})).tools.some(({ name }) => name === "roll"), waiting);
  }

  const over = new AbortController();
  let ended = 0;
  const failed: string[] = [];
  const call = async (caller: number) => {
    const client = connect({ url, token: "caller-token-for-tests" });
    onTestFinished(() => client.close());
    const { session } = await client.sessions.createSession({});
    for (let index = 0; !over.signal.aborted; index += 1) {
      const text = `${caller} ${index}`;
      const ids = { sessionId: session?.id ?? "", callId: `call_${index}` };
      const output = await client.call("roll", { text }, ids).then(
        (completed) => completed.output,
        (error: unknown) => String(error),
      );
      if (output !== text) failed.push(output);
      ended += 1;
    }
  };
  const calling = Promise.all(Array.from({ length: callers }, (_, caller) => call(caller)));
  await vi.waitUntil(() => ended >= callers, waiting);

  const exits: (number | null)[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const restartReplicas = async () => {
      for (const replica of system.replicas) {
        exits.push(await replica.stop());
        await replica.start();
      }
    };
    const restartWorkers = async () => {
      for (const [index, stop] of workers.entries()) {
        await stop();
        workers[index] = startWorker();
      }
    };
    await Promise.all([restartReplicas(), restartWorkers()]);
  }
  over.abort();
  await calling;

  expect(failed).toEqual([]);
  expect(exits).toEqual(exits.map(() => 0));
  const again = [...runs].filter(([, count]) => count !== 1);
  expect(again).toEqual([]);
  expect(runs.size).toBe(ended);
  report({
    ...{ fault: "F16 rolling restarts of replicas and workers", faults: exits.length + rounds * workerCount },
    ...{ calls: ended, answers: 0, runs: runs.size, violations: 0, seen: `${ended} completed` },
  });
});

const waiting = { timeout: 120_000, interval: 100 };

/** Connects clients to one replica after the other, past those that do not listen. Returns its address. */
async function startBalancer(replicas: readonly { readonly url: string }[]): Promise<string> {
  let count = 0;
  const sockets = new Set<Socket>();
  const keep = (socket: Socket) => {
    sockets.add(socket);
    return socket.on("error", () => undefined).on("close", () => sockets.delete(socket));
  };
  function pass(near: Socket, tries: number): void {
    const { hostname, port } = new URL(replicas[count % replicas.length]?.url ?? "");
    count += 1;
    const far = keep(openSocket(Number(port), hostname));
    let isOpen = false;
    far.once("connect", () => {
      isOpen = true;
      near.pipe(far).pipe(near);
      near.on("close", () => far.destroy());
      if (near.destroyed) far.destroy();
    });
    far.once("close", () => {
      if (isOpen || tries === 1) near.destroy();
      else pass(near, tries - 1);
    });
  }
  const balancer = createServer((near) => pass(keep(near), replicas.length));
  balancer.listen(0, "127.0.0.1");
  await once(balancer, "listening");
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    balancer.close();
  });
  const address = balancer.address();
  if (address === null || typeof address === "string") throw new Error("the balancer has no port");
  return `http://127.0.0.1:${address.port}`;
}
