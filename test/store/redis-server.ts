import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import type { Certificates } from "../edge/certificates.ts";
import { fakeTime } from "../faults/fake-time.ts";

/** Redis processes of a test. */
export interface RedisServers {
  /** URL for a store. */
  url: string;
  /** Addresses of the processes. */
  nodes: { path: string }[] | Node[];
  /** Kills one process and starts it again, empty. */
  restart(node?: number): Promise<void>;
  /** Stops all processes and removes their files. */
  stop(): Promise<void>;
}

/** Address of a Redis with a port, and the authority to trust for TLS. */
type Node = { host: string; port: number; tls?: { ca: string } };

/** Starts one Redis on a unix socket. */
export const startRedis = (...settings: string[]): Promise<RedisServers> => startRedisIn({}, ...settings);

async function startRedisIn(env: NodeJS.ProcessEnv, ...settings: string[]): Promise<RedisServers> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-redis-"));
  const path = join(directory, "r.sock");
  const start = () => startProcess(directory, ["--port", "0", "--unixsocket", path, ...settings], env);
  let server = await start();
  return {
    url: `redis+unix://${path}`,
    nodes: [{ path }],
    async restart() {
      await stopProcess(server);
      server = await start();
    },
    async stop() {
      await stopProcess(server);
      await rm(directory, { recursive: true, force: true });
    },
  };
}

/** A Redis whose clock can jump. */
export interface RedisWithClock extends RedisServers {
  /** Sets the difference between its clock and that of the machine, such as "+40d". */
  setClock(offset: string): Promise<void>;
}

/** Starts one Redis on a unix socket, with a private clock. */
export async function startRedisWithClock(): Promise<RedisWithClock> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-redis-clock-"));
  const clock = join(folder, "clock");
  const setClock = (offset: string) => writeFile(clock, `${offset}\n`);
  await setClock("+0");
  const { LD_PRELOAD, ...faked } = fakeTime();
  // Without the allocator of libc Redis hangs at its start: jemalloc asks for the time before the time can be asked for.
  const env = { ...faked, LD_PRELOAD: `${LD_PRELOAD} libc.so.6`, FAKETIME_TIMESTAMP_FILE: clock };
  const server = await startRedisIn(env);
  const stop = async () => {
    await server.stop();
    await rm(folder, { recursive: true });
  };
  return { ...server, setClock, stop };
}

/** Stops a Redis process; returns the function that continues it. */
export async function freezeRedis({ nodes: [node] }: RedisServers): Promise<() => void> {
  const client = new Redis(node ?? {});
  const pid = Number(/process_id:(\d+)/.exec(await client.info("server"))?.[1]);
  client.disconnect();
  process.kill(pid, "SIGSTOP");
  return () => void process.kill(pid, "SIGCONT");
}

/** Starts one Redis with a password on a free port; with certificates it accepts only TLS. */
export async function startRedisOnPort(password: string, certificates?: Certificates): Promise<RedisServers> {
  const [port = 0] = await freePorts(1);
  const server = await startRedis("--requirepass", password, ...listenOn(port, certificates));
  return { ...server, url: `${certificates ? "rediss" : "redis"}://:${password}@127.0.0.1:${port}` };
}

/** Starts a cluster of three masters on free ports. */
export async function startCluster(certificates?: Certificates): Promise<RedisServers> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-cluster-"));
  const nodes = (await freePorts(3)).map((port) => nodeAt(port, certificates));
  const start = ({ port }: Node) => {
    const cluster = [
      "--cluster-enabled",
      "yes",
      "--cluster-config-file",
      `${port}.conf`,
      "--cluster-node-timeout",
      "2000",
    ];
    return startProcess(directory, [...listenOn(port, certificates), ...cluster]);
  };
  const servers = await Promise.all(nodes.map(start));
  await unite(nodes);
  return {
    url: `${certificates ? "rediss" : "redis"}+cluster://${nodes.map(({ host, port }) => `${host}:${port}`).join(",")}`,
    nodes,
    async restart(index = 0) {
      const [server, node] = [servers[index], nodes[index]];
      if (server === undefined || node === undefined) throw new Error(`there is no node ${index}`);
      await stopProcess(server);
      servers[index] = await start(node);
      await untilWhole(nodes);
    },
    async stop() {
      await Promise.all(servers.map(stopProcess));
      await rm(directory, { recursive: true, force: true });
    },
  };
}

/** Assigns a third of the slots to each node and waits until all nodes agree. */
export async function unite(nodes: Node[]): Promise<void> {
  const slots = [
    [0, 5460],
    [5461, 10922],
    [10923, 16383],
  ] as const;
  const clients = nodes.map((node) => new Redis(node));
  await Promise.all(clients.map((client, index) => client.call("cluster", "addslotsrange", ...(slots[index] ?? []))));
  // Different epochs from the start, so that the nodes need not negotiate them.
  await Promise.all(clients.map((client, index) => client.call("cluster", "set-config-epoch", index + 1)));
  for (const { host, port } of nodes.slice(1)) await clients[0]?.call("cluster", "meet", host, port);
  for (const client of clients) client.disconnect();
  await untilWhole(nodes);
}

async function untilWhole(nodes: Node[]): Promise<void> {
  const clients = nodes.map((node) => new Redis(node));
  const isWhole = (state: unknown) => /cluster_state:ok[\s\S]*cluster_known_nodes:3/.test(String(state));
  await untilState("the nodes of the cluster did not agree", async () => {
    const states = await Promise.all(clients.map((client) => client.call("cluster", "info")));
    return { isReached: states.every(isWhole), state: states.join("\n") };
  }).finally(() => {
    for (const client of clients) client.disconnect();
  });
}

/** Options for TLS: with certificates there is no plain port, neither for clients nor for other servers. */
export function listenOn(port: number, certificates?: Certificates): string[] {
  const own = ["--bind", "127.0.0.1"];
  if (certificates === undefined) return [...own, "--port", String(port)];
  const { server, ca } = certificates;
  const files = [
    "--tls-cert-file",
    server.certFile,
    "--tls-key-file",
    server.keyFile,
    "--tls-ca-cert-file",
    ca.certFile,
  ];
  const among = ["--tls-auth-clients", "no", "--tls-cluster", "yes", "--tls-replication", "yes"];
  return [...own, "--port", "0", "--tls-port", String(port), ...files, ...among];
}

function nodeAt(port: number, certificates?: Certificates): Node {
  return { host: "127.0.0.1", port, ...(certificates && { tls: { ca: certificates.ca.cert } }) };
}

export async function startProcess(
  directory: string,
  settings: string[],
  env: NodeJS.ProcessEnv = {},
): Promise<ChildProcess> {
  const fixed = ["--save", "", "--appendonly", "no", "--dir", directory, "--maxmemory-policy", "noeviction"];
  const server = spawn("redis-server", [...fixed, ...settings], {
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, ...env },
  });
  await new Promise<void>((resolve, reject) => {
    server.on("error", () => reject(new Error("apt-get install -y redis-server")));
    server.on("exit", (code) => reject(new Error(`redis-server ended with ${code} before it was ready`)));
    let said = "";
    server.stdout?.on("data", (text: Buffer) => {
      said += text.toString();
      if (/eady to accept connections/.test(said)) resolve();
    });
  });
  return server;
}

export async function stopProcess(server: ChildProcess): Promise<void> {
  if (server.exitCode !== null || server.signalCode !== null) return;
  server.kill("SIGKILL");
  await once(server, "exit");
}

/** Finds free ports; the cluster bus also needs the port 10,000 above each. */
export async function freePorts(count: number): Promise<number[]> {
  const ports: number[] = [];
  while (ports.length < count) {
    const server = createServer();
    // Below the range of ephemeral ports.
    const port = 16_000 + Math.floor(Math.random() * 6_000);
    server.listen(port, "127.0.0.1");
    const free = await Promise.race([
      once(server, "listening").then(() => true),
      once(server, "error").then(() => false),
    ]);
    server.close();
    if (free && !ports.includes(port)) ports.push(port);
  }
  return ports;
}

/** Starts a master, a replica and a sentinel; `restart` only kills the master, once the replica has all data. */
export async function startSentinel(certificates?: Certificates): Promise<RedisServers> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-sentinel-"));
  const [first = 0, second = 0, watching = 0] = await freePorts(3);
  const on = (port: number, ...settings: string[]) =>
    startProcess(directory, [...listenOn(port, certificates), ...settings]);
  const master = await on(first);
  const copy = await on(second, "--replicaof", "127.0.0.1", String(first), "--repl-diskless-sync-delay", "0");
  const settings = join(directory, "sentinel.conf");
  await writeFile(
    settings,
    `dir ${directory}\nsentinel monitor main 127.0.0.1 ${first} 1\n` +
      "sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 1000\n",
  );
  const sentinel = spawn("redis-server", [settings, "--sentinel", ...listenOn(watching, certificates)], {
    stdio: "ignore",
  });
  await untilWatched(nodeAt(watching, certificates));
  return {
    url: `${certificates ? "rediss" : "redis"}+sentinel://127.0.0.1:${watching}/main`,
    nodes: [nodeAt(second, certificates)],
    async restart() {
      await untilCopied(nodeAt(first, certificates));
      await stopProcess(master);
    },
    async stop() {
      await Promise.all([master, copy, sentinel].map(stopProcess));
      await rm(directory, { recursive: true, force: true });
    },
  };
}

async function untilCopied(node: Node): Promise<void> {
  const client = new Redis(node);
  await client.set("last", "write");
  await client.wait(1, 0);
  client.disconnect();
}

/** Waits until a sentinel knows the replica, without which there is no failover. */
async function untilWatched(node: Node): Promise<void> {
  const client = new Redis({ ...node, maxRetriesPerRequest: null });
  client.on("error", () => {});
  await untilState("the sentinel found no replica", async () => {
    const state = String(await client.call("info", "sentinel"));
    return { isReached: /status=ok,address=[^,]*,slaves=1,/.test(state), state };
  }).finally(() => client.disconnect());
}

/** Only what hangs takes so long. The long run of faults may have a busy machine. */
const maxWaitMs = process.env.TOOLGATE_LONG === "1" ? 600_000 : 60_000;

/** Polls until a state is reached; an error names the last one. */
export async function untilState(
  problem: string,
  look: () => Promise<{ isReached: boolean; state: string }>,
): Promise<void> {
  const end = performance.now() + maxWaitMs;
  for (;;) {
    const { isReached, state } = await look();
    if (isReached) return;
    if (performance.now() > end) throw new Error(`${problem} within ${maxWaitMs / 1000} s; the last state:\n${state}`);
    await sleep(20);
  }
}
