import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import { freePorts, listenOn, startProcess, stopProcess, unite, untilState } from "./redis-server.ts";

/** Ways in which a master stops being one: an operator moves it, its process dies, or it freezes until after the failover. */
export type Failover = "planned" | "kill" | "freeze";

/** Masters with copies. */
export interface CopiedServers {
  /** URL for a store. */
  url: string;
  /** Ports of all servers, the first master first. */
  ports: readonly number[];
  /** Port of the copy that joins first. */
  sparePort?: number;
  /** Port of the sentinel that joins. */
  spareSentinelPort?: number;
  /** Fails a master over to a copy; resolves once clients can find the new master. */
  failOver(kind: Failover): Promise<void>;
  /** Resolves once every server that is not a master is a connected copy of one. */
  settle(): Promise<void>;
  /** Has a copy join; returns the function that has another one leave. */
  join?(): Promise<() => Promise<void>>;
  /**
   * Has a sentinel join and the first one leave. Returns the function that has the one that joined fail the master over, and then leave
   * when the first one is back.
   */
  changeSentinel?(): Promise<() => Promise<void>>;
  /** Stops the process of a server, or continues it. */
  signal(port: number, name: "SIGSTOP" | "SIGCONT"): void;
  stop(): Promise<void>;
}

/** Starts a master with copies, and a sentinel that decides alone. */
export async function startSentinelWithCopies(copies: number, ...settings: string[]): Promise<CopiedServers> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-sentinel-"));
  const [watching = 0, spareSentinelPort = 0, sparePort = 0, ...ports] = await freePorts(copies + 4);
  const servers = new Map<number, ChildProcess>();
  const start = async (port: number, master: number | undefined) => {
    const copying = master === undefined ? [] : ["--replicaof", "127.0.0.1", String(master)];
    const fast = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
    servers.set(port, await startProcess(directory, [...listenOn(port), ...fast, ...settings, ...copying]));
  };
  const [first = 0, ...others] = ports;
  let spare = sparePort;
  let copyCount = copies;
  await start(first, undefined);
  for (const port of others) await start(port, first);
  const sentinels = new Map<number, ChildProcess>();
  const watch = (port: number) => {
    const args = [join(directory, `sentinel-${port}.conf`), "--sentinel", ...listenOn(port)];
    sentinels.set(port, spawn("redis-server", args, { stdio: "ignore" }));
  };
  const watchFirst = async (port: number, watched: number) => {
    await writeFile(
      join(directory, `sentinel-${port}.conf`),
      `dir ${directory}\nsentinel monitor main 127.0.0.1 ${watched} 1\n` +
        "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 3000\n",
    );
    watch(port);
  };
  await watchFirst(watching, first);
  const watcher = connectTo(watching);
  const master = () => masterOf(watcher);
  const settle = () =>
    untilState("the copies did not follow the master", async () => {
      const now = await master();
      const copiesNow = listOf(await watcher.call("sentinel", "replicas", "main")).map(asMap);
      const state = JSON.stringify(copiesNow.map((copy) => [...copy]));
      const good = copiesNow.filter(
        (copy) =>
          copy.get("flags") === "slave" &&
          copy.get("master-link-status") === "ok" &&
          copy.get("master-port") === String(now),
      );
      return { isReached: good.length === copyCount, state };
    });
  await settle();
  return {
    url: `redis+sentinel://127.0.0.1:${watching}/main`,
    ports,
    sparePort,
    spareSentinelPort,
    async failOver(kind) {
      const before = await master();
      const server = servers.get(before);
      if (server === undefined) throw new Error(`there is no server at ${before}`);
      if (kind === "kill") await stopProcess(server);
      if (kind === "freeze") server.kill("SIGSTOP");
      await untilMoved(before, watcher, kind === "planned");
      if (kind === "freeze") {
        await sleep(500);
        server.kill("SIGCONT");
      }
      if (kind === "kill") await start(before, await master());
    },
    settle,
    async join() {
      await start(spare, await master());
      copyCount += 1;
      await settle();
      return async () => {
        const now = await master();
        const [port = 0, server] = [...servers].find(([each]) => each !== now && each !== spare) ?? [];
        if (server) await stopProcess(server);
        servers.delete(port);
        [spare, copyCount] = [port, copies];
        // A sentinel remembers copies that are gone.
        await watcher.call("sentinel", "reset", "main");
        await settle();
      };
    },
    async changeSentinel() {
      await watchFirst(spareSentinelPort, await master());
      const joined = connectTo(spareSentinelPort);
      const meet = (one: Redis) =>
        untilState("the sentinels did not find each other and the copies", async () => {
          const [others, known] = await Promise.all(
            ["sentinels", "replicas"].map(async (kind) => listOf(await one.call("sentinel", kind, "main"))),
          );
          return { isReached: others?.length === 1 && known?.length === copyCount, state: String(others) };
        });
      const stopSentinel = async (port: number) => {
        const process = sentinels.get(port);
        if (process) await stopProcess(process);
        sentinels.delete(port);
      };
      await Promise.all([watcher, joined].map(hurrySentinel));
      await Promise.all([watcher, joined].map(meet));
      await stopSentinel(watching);
      return async () => {
        const before = await masterOf(joined);
        await untilMoved(before, joined, true);
        watch(watching);
        await hurrySentinel(watcher);
        await untilState("the first sentinel did not learn of the new master", async () => {
          const [mine, other] = await Promise.all([watcher, joined].map(masterOf));
          return { isReached: mine === other, state: `${mine} ${other}` };
        });
        // Forgotten before it follows, the former master would stay one.
        await settle();
        joined.disconnect();
        await stopSentinel(spareSentinelPort);
        // A copy that is behind may still publish that the other one is there. Known and gone, it would have to elect.
        await untilState("the sentinel that left is still known", async () => {
          await watcher.call("sentinel", "reset", "main");
          await sleep(1_000);
          const known = listOf(await watcher.call("sentinel", "sentinels", "main"));
          return { isReached: known.length === 0, state: String(known) };
        });
        await settle();
      };
    },
    signal: (port, name) => void servers.get(port)?.kill(name),
    async stop() {
      watcher.disconnect();
      await Promise.all([...servers.values(), ...sentinels.values()].map(stopProcess));
      await rm(directory, { recursive: true, force: true });
    },
  };
}

/** Starts a cluster of three masters with a copy each; a failover is that of the next master. */
export async function startClusterWithCopies(...settings: string[]): Promise<CopiedServers> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-cluster-"));
  const ports = await freePorts(6);
  const servers = new Map<number, ChildProcess>();
  const start = async (port: number) => {
    const own = ["--cluster-enabled", "yes", "--cluster-config-file", `${port}.conf`, "--cluster-node-timeout", "1500"];
    const fast = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
    servers.set(port, await startProcess(directory, [...listenOn(port), ...own, ...fast, ...settings]));
  };
  await Promise.all(ports.map(start));
  const clients = new Map(ports.map((port) => [port, connectTo(port)]));
  const clientOf = (port: number) => clients.get(port) ?? connectTo(port);
  const copiesBegin = 3;
  await unite(ports.slice(0, copiesBegin).map((port) => ({ host: "127.0.0.1", port })));
  for (const [index, port] of ports.slice(copiesBegin).entries()) {
    const of = ports[index] ?? 0;
    await clientOf(port).call("cluster", "meet", "127.0.0.1", of);
    const id = String(await clientOf(of).call("cluster", "myid"));
    await untilState("a copy did not join the cluster", async () => {
      const state = String(await clientOf(port).call("cluster", "nodes"));
      const joined = await clientOf(port)
        .call("cluster", "replicate", id)
        .then(() => true)
        .catch(() => false);
      return { isReached: joined, state };
    });
  }
  const settle = () =>
    untilState("the copies did not follow their masters", async () => {
      const states = await Promise.all(ports.map((port) => replicationOf(clientOf(port)).catch(() => "")));
      const masters = states.filter((state) => /role:master[\s\S]*connected_slaves:1/.test(state));
      const followers = states.filter((state) => /role:slave[\s\S]*master_link_status:up/.test(state));
      const infos = await Promise.all(
        ports.map((port) =>
          clientOf(port)
            .call("cluster", "info")
            .catch(() => ""),
        ),
      );
      const isOk = infos.every((info) => /cluster_state:ok[\s\S]*cluster_known_nodes:6/.test(String(info)));
      return { isReached: masters.length === 3 && followers.length === 3 && isOk, state: states.join("\n") };
    });
  await settle();
  let turn = 0;
  return {
    url: `redis+cluster://${ports.map((port) => `127.0.0.1:${port}`).join(",")}`,
    ports,
    async failOver(kind) {
      const pair = [ports[turn % 3] ?? 0, ports[(turn % 3) + 3] ?? 0];
      turn += 1;
      const roles = await Promise.all(pair.map((port) => replicationOf(clientOf(port))));
      const [before = 0, copy = 0] = roles[0]?.includes("role:master") ? pair : pair.toReversed();
      const server = servers.get(before);
      if (kind === "planned") await clientOf(copy).call("cluster", "failover");
      if (kind === "kill" && server) await stopProcess(server);
      if (kind === "freeze") server?.kill("SIGSTOP");
      await untilState("no copy became the master", async () => {
        const state = await replicationOf(clientOf(copy)).catch(String);
        return { isReached: state.includes("role:master"), state };
      });
      if (kind === "freeze") {
        await sleep(500);
        server?.kill("SIGCONT");
      }
      if (kind === "kill") await start(before);
    },
    settle,
    signal: (port, name) => void servers.get(port)?.kill(name),
    async stop() {
      for (const client of clients.values()) client.disconnect();
      await Promise.all([...servers.values()].map(stopProcess));
      await rm(directory, { recursive: true, force: true });
    },
  };
}

function connectTo(port: number): Redis {
  const client = new Redis({ host: "127.0.0.1", port, maxRetriesPerRequest: null, retryStrategy: () => 50 });
  client.on("error", () => {});
  return client;
}

/** Waits until another server is the master. A sentinel that abandons a planned failover, as on a busy machine, is asked again. */
async function untilMoved(before: number, sentinel: Redis, isPlanned: boolean): Promise<void> {
  let askAt = 0;
  let refusal = "";
  await untilState("no copy became the master", async () => {
    const now = await masterOf(sentinel);
    if (now !== before) return { isReached: await isMaster(now), state: String(now) };
    if (isPlanned && performance.now() > askAt) {
      askAt = performance.now() + askAgainMs;
      // It refuses while a failover is under way.
      await sentinel.call("sentinel", "failover", "main").catch((error: Error) => {
        refusal = error.message;
      });
    }
    const seen = ["master", "replicas", "sentinels"].map((kind) => sentinel.call("sentinel", kind, "main"));
    return { isReached: false, state: JSON.stringify([refusal, ...(await Promise.all(seen))]) };
  });
}

const masterOf = async (sentinel: Redis) => portOf(await sentinel.call("sentinel", "get-master-addr-by-name", "main"));

/** Longer than a sentinel tries: `failover-timeout`. */
const askAgainMs = 10_000;

/** Lets a sentinel look after its servers each half second, in place of each ten. */
export async function hurrySentinel(sentinel: Redis): Promise<void> {
  await sentinel.call("sentinel", "debug", "info-period", "500", "publish-period", "200");
}

async function isMaster(port: number): Promise<boolean> {
  const client = connectTo(port);
  const [role] = await client.role().catch(() => [""]);
  client.disconnect();
  return role === "master";
}

const replicationOf = (client: Redis): Promise<string> => client.info("replication");

const listOf = (reply: unknown): unknown[] => (Array.isArray(reply) ? reply : []);
const portOf = (address: unknown): number => Number(listOf(address)[1]);

/** Reads a reply of alternating names and values. */
function asMap(reply: unknown): Map<string, unknown> {
  const all = listOf(reply);
  return new Map(all.flatMap((name, index) => (index % 2 === 0 ? [[String(name), all[index + 1]]] : [])));
}
