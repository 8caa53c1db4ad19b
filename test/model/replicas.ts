import { tmpdir } from "node:os";
import { join } from "node:path";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { DelegatorsOf, GroupsNow } from "../../src/approval/votes.ts";
import { openCrashMarks } from "../../src/call/crash-marks.ts";
import type { RemoteTools } from "../../src/call/engine.ts";
import type { Store } from "../../src/call/ports.ts";
import { createReplica } from "../../src/compose/replica.ts";
import { readLimits } from "../../src/config/schema.ts";
import type { Logger } from "../../src/core/logger.ts";
import type { ConfiguredApprovals } from "../../src/policy/approval-rules.ts";
import type { NoticePhase, NoticeStore } from "../../src/reach/ports.ts";
import type { DefinedTool } from "../../src/tool/tool.ts";
import { createReach, ReplicaDied } from "./reach.ts";
import type { NewContents } from "./stores.ts";

/** A live replica, and its store without the delay in between. */
export interface Replica extends ReturnType<typeof createReplica> {
  store: Store;
  /** Claims what is due at the channel of every request, and records that the provider accepted it. */
  deliver(): Promise<void>;
  notices: NoticeStore;
  /** Aborted when it is dead. */
  gone: AbortSignal;
  end(): Promise<void>;
}

/** Setting of a run. */
export interface Setting {
  newContents: NewContents;
  /** Turns of the event loop that the steps of a store take in each direction, one number per step, repeated. */
  pace: readonly number[];
  /** Breaks a promise of the store, to check that the test detects it. */
  tamper?: ((ports: Store, replica: string) => Store) | undefined;
  /** Bodies that may run at one replica. */
  replicaRunning?: number;
  /** False for a replica whose rules differ from those of the others. */
  agreesOnPolicy?: (replica: string) => boolean;
  /** Who has to approve what. */
  approvals?: ConfiguredApprovals;
  /** The groups of a person at any time; absent: those of their principal. */
  groupsNow?: GroupsNow;
  delegatorsOf?: DelegatorsOf;
}

export type Replicas = Awaited<ReturnType<typeof startReplicas>>;

const leaseMs = 60_000;
const limits = {
  ...readLimits(),
  requestBytes: 65_536,
  inputBytes: 65_536,
  outputBytes: 65_536,
  timeoutMs: 600_000,
  maxTimeoutMs: 600_000,
  openAsks: 1_000,
  runningCalls: 1_000,
  replicaRunning: 1_000,
  reportMs: 600_000,
  collectMs: 600_000,
};

/** Starts replicas over one store, without timers and network: time passes only when a test advances it. */
export async function startReplicas(
  {
    newContents,
    pace,
    tamper = (ports) => ports,
    agreesOnPolicy = () => true,
    replicaRunning,
    approvals,
    groupsNow,
    delegatorsOf,
  }: Setting,
  {
    toolsOf,
    remoteToolsOf,
    onNews,
  }: {
    toolsOf(gone: AbortSignal, replica: string): DefinedTool[];
    remoteToolsOf?(tools: readonly DefinedTool[]): RemoteTools;
    onNews(): void;
  },
) {
  let time = 1_800_000_000_000;
  let [turn, started] = [0, 0];
  const errors: unknown[] = [];
  /** Calls whose end was reported to the observer of a replica. */
  const ends: string[] = [];
  /** Phases of the notices that were delivered, in order, by request. */
  const delivered = new Map<string, NoticePhase[]>();
  const log: Logger = {
    debug() {},
    info() {},
    warn() {},
    error: (message, fields) => void (fields?.error instanceof ReplicaDied || errors.push([message, fields])),
  };
  const contents = await newContents(() => time, log);
  const living = new Map<string, Replica>();
  for (let i = 0; i < contents.replicas; i++) await start();

  async function start(): Promise<void> {
    started += 1;
    const name = `r${started}`;
    const store = await contents.open();
    const reach = createReach(tamper(store, name), () => pace[turn++ % pace.length] ?? 0);
    const crashMarks = openCrashMarks(join(tmpdir(), "toolgate-model"), name);
    const tools = toolsOf(reach.gone, name);
    const replica = createReplica({
      config: {
        askMs: 86_400_000,
        dataDirectory: "/data",
        file: "/toolgate.toml",
        leaseMs,
        limits: { ...limits, ...(replicaRunning !== undefined && { replicaRunning }) },
        unattended: "wait",
        workspaces: new Map([["default", import.meta.dirname]]),
      },
      // A few keys are used again and again, and the model has no word for that.
      rules: {
        config: [{ permission: "doom_loop", pattern: "*", action: PermissionAction.ALLOW }],
        agents: new Map(),
        approvals,
      },
      ...(groupsNow && { groupsNow }),
      ...(delegatorsOf && { delegatorsOf }),
      store: reach.ports,
      replicaId: name,
      tools,
      remoteTools: remoteToolsOf?.(tools),
      crashMarks,
      observer: {
        began: () => ({ step: (_, work) => work(undefined), over() {} }),
        waited() {},
        differed() {},
        ended: ({ part }) => void ends.push(`${part.sessionId} ${part.callId}`),
      },
      agreesOnPolicy: () => agreesOnPolicy(name),
      // One that any replica may claim, and one that its own replica is sending for ever.
      notices: {
        noticesOf: ({ id: ask }) =>
          ["", name].map((owner) => ({
            ...{ ask, channel: owner === "" ? "any" : "own", recipient: "", dueAt: time, owner, leaseMs, dead: "" },
          })),
        escalationsOf: (ask, steps) =>
          steps
            .flatMap(({ channels }) => channels)
            .map((channel) => ({ ask, channel, recipient: "", dueAt: time, owner: "", leaseMs, dead: "" })),
        opened() {},
      },
      log,
    });
    const off = store.calls.onNews(undefined, onNews);
    living.set(name, {
      ...replica,
      store,
      async deliver() {
        const channels = new Map([["any", 10]]);
        for (const notice of await store.notices.claimNotices({ owner: name, leaseMs, channels })) {
          if (reach.gone.aborted) return;
          delivered.set(notice.ask, [...(delivered.get(notice.ask) ?? []), notice.phase]);
          await store.notices.noteNotice(notice, name, { result: "accepted", ref: "m" });
        }
      },
      notices: store.notices,
      gone: reach.gone,
      async end() {
        await reach.cut();
        off();
        await store.calls.close();
        crashMarks.close();
      },
    });
  }

  /** Runs work on each live replica; ignores failures of replicas that died meanwhile. */
  async function each(work: (replica: Replica) => Promise<void>): Promise<void> {
    const unlessGone = (replica: Replica) => (cause: unknown) => {
      if (!replica.gone.aborted) throw cause;
    };
    await Promise.all([...living.values()].map((replica) => work(replica).catch(unlessGone(replica))));
  }

  return {
    errors,
    ends,
    delivered,
    /** True if none was killed yet. */
    allLive: () => started === living.size,
    names: () => [...living.keys()],
    /** Returns the name of the next one. */
    nextName: () => `r${started + 1}`,
    at(name: string): Replica {
      const replica = living.get(name);
      if (!replica) throw new ReplicaDied();
      return replica;
    },
    /** Returns a live replica, in turn. */
    any(): Replica {
      const replica = [...living.values()][turn++ % living.size];
      if (!replica) throw new ReplicaDied();
      return replica;
    },
    each,
    /** Kills a replica as SIGKILL does, and starts another one in its place. */
    async kill(name: string): Promise<void> {
      const dead = living.get(name);
      living.delete(name);
      await dead?.end();
      await start();
    },
    /** Advances time until the leases of dead replicas have lapsed, and no others. */
    async outliveTheDead(): Promise<void> {
      for (let third = 0; third < 3; third++) {
        await each(({ calls }) => calls.renew());
        time += leaseMs / 2;
      }
      await each(({ calls }) => calls.renew());
    },
    /** Advances time. */
    advance(ms: number): void {
      time += ms;
    },
    /** Advances time beyond all leases without renewing any, then lets each replica recover orphans before it renews. */
    async freeze(): Promise<void> {
      time += 2 * leaseMs;
      await each(({ calls }) => calls.recover());
      await each(({ calls }) => calls.renew());
    },
    async stop(): Promise<void> {
      for (const replica of living.values()) await replica.end();
      await contents.remove();
    },
  };
}
