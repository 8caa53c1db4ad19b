import { mkdtemp, readdir, readFile, readlink, realpath, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Redis } from "ioredis";
import { onTestFinished } from "vitest";
import { type Clients, connect } from "../e2e/clients.ts";
import { createService, type Principal, type Service, unconfined } from "../e2e/service.ts";
import { freezeRedis, startRedis } from "../store/redis-server.ts";
import type { Break } from "./broken-store.ts";
import { startWire, type Wire } from "./wire.ts";

/** A replica, with its connection to Redis. */
export interface Replica extends Service {
  wire: Wire;
  /** Clients over a long-lived connection, one per lane, since a connection carries at most 100 streams. */
  as(who: Principal, lane?: number): Clients;
  /** Sends SIGSTOP or SIGCONT. */
  signal(name: "SIGSTOP" | "SIGCONT"): void;
  /** Returns true while it is stopped by SIGSTOP. */
  isFrozen(): Promise<boolean>;
}

/** Replicas that share one Redis and one workspace. */
export interface System {
  readonly replicas: readonly Replica[];
  readonly workspace: string;
  /** Returns the replica of this number, modulo their count. */
  at(index: number): Replica;
  /** Restores all connections to Redis. */
  openLines(): void;
  /** Kills Redis and starts it again, empty unless it has an append-only file. */
  emptyRedis(): Promise<void>;
  /** Stops Redis; returns the function that continues it. */
  freezeRedis(): Promise<() => void>;
  /** Sends a command to Redis directly. */
  redis: Redis;
  /** Lists running processes that tools have started. */
  children(): Promise<number[]>;
  /** Returns the supervisor process of the replica of this number. */
  supervisorOf(index: number): Promise<number>;
}

/** Changes to the default system: three intact replicas with leases of 2 s. */
export interface SystemOptions {
  count?: number;
  leaseMs?: number;
  /** First lines of the configuration of every replica. */
  settings?: string;
  /** Breaks, by replica. */
  breaks?: readonly (readonly Break[])[];
  /**
   * URL of a store that the test has started, which the replicas reach directly, or `sqlite` for a database in the data directory
   * of one replica. By default: a Redis, which each replica reaches over its wire.
   */
  store?: string;
  /** Settings of the Redis of the system. */
  redis?: readonly string[];
  /** Opens the wire of a replica to a store that the test has started. */
  openWire?: () => Promise<Wire>;
  /** Additional environment variables, by replica. */
  env?: readonly Readonly<Record<string, string>>[];
  /** Entry points of replicas of another version; undefined: this one. */
  entries?: readonly (string | undefined)[];
}

/** Where Node stores compiled source; it checks each file's content. */
const compiled = join(import.meta.dirname, "../../node_modules/.cache/compiled");

/** Lease of tests in which each call completes: no stall of a busy machine is as long. */
export const longLeaseMs = 30_000;

/** Starts a system for one test. */
export async function startSystem(options: SystemOptions = {}): Promise<System> {
  const { count = 3, leaseMs = 2_000, settings = "", breaks = [], env = [], entries = [], store } = options;
  const server = await startRedis(...(options.redis ?? []));
  onTestFinished(server.stop);
  const [node] = server.nodes;
  if (node === undefined || !("path" in node)) throw new Error("Redis does not listen on a socket");
  const { openWire = () => startWire(node) } = options;
  const redis = new Redis({ ...node, maxRetriesPerRequest: null });
  redis.on("error", () => undefined);
  onTestFinished(() => redis.disconnect());
  const workspace = await realpath(await mkdtemp(join(tmpdir(), "toolgate-faults-")));
  onTestFinished(() => rm(workspace, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 }));

  async function start(index: number): Promise<Replica> {
    const wire = await openWire();
    onTestFinished(wire.close);
    const broken = breaks[index];
    const entry = broken ? "test/faults/replica.ts" : entries[index];
    const service = createService({
      settings: `${placeOf(store ?? wire.url)}lease_ms = ${leaseMs}\n${settings}\n${unconfined}`,
      flags: ["--workspace", workspace],
      // A broken replica starts from source, which takes half of the time if its compiled form is stored.
      env: { ...env[index], ...(broken && { TOOLGATE_BREAK: broken.join(","), NODE_COMPILE_CACHE: compiled }) },
      ...(entry !== undefined && { entry }),
    });
    onTestFinished(service.close);
    await service.start();
    return createReplica(service, wire);
  }

  const replicas = await Promise.all(Array.from({ length: count }, (_, index) => start(index)));
  return {
    replicas,
    workspace,
    redis,
    at(index) {
      const replica = replicas[index % count];
      if (replica === undefined) throw new Error("there are no replicas");
      return replica;
    },
    openLines() {
      for (const { wire } of replicas) wire.set("open");
    },
    emptyRedis: () => server.restart(),
    freezeRedis: () => freezeRedis(server),
    children: () => processesIn(workspace),
    supervisorOf: (index) => childOf(replicas[index]?.pid, "supervisor.sh"),
  };
}

const placeOf = (store: string) => (store === "sqlite" ? "" : `store = "${store}"\n`);

function createReplica(service: Service, wire: Wire): Replica {
  const connected = new Map<string, Clients>();
  return Object.create(service, {
    wire: { value: wire },
    as: {
      value(who: Principal, lane = 0) {
        const key = `${service.url} ${who} ${lane}`;
        const clients = connected.get(key) ?? connect(service, who);
        connected.set(key, clients);
        return clients;
      },
    },
    signal: {
      value(name: "SIGSTOP" | "SIGCONT") {
        if (service.pid !== undefined) process.kill(service.pid, name);
      },
    },
    isFrozen: { value: async () => / T /.test(await readFile(`/proc/${service.pid}/stat`, "utf8").catch(() => "")) },
  });
}

/** Returns processes in the workspace: commands run there, services do not. */
async function processesIn(directory: string): Promise<number[]> {
  const pids = (await readdir("/proc")).map(Number).filter(Number.isInteger);
  const directories = await Promise.all(pids.map((pid) => readlink(`/proc/${pid}/cwd`).catch(() => "")));
  return pids.filter((_, index) => directories[index] === directory);
}

async function childOf(parent: number | undefined, script: string): Promise<number> {
  for (const pid of (await readdir("/proc")).map(Number).filter(Number.isInteger)) {
    const status = await readFile(`/proc/${pid}/status`, "utf8").catch(() => "");
    const words = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
    if (status.includes(`PPid:\t${parent}\n`) && words.includes(script)) return pid;
  }
  throw new Error(`process ${parent} has no ${script}`);
}
