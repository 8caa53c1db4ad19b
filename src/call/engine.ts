import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { StopRecord } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import type { AskStore, GrantStore } from "../approval/ports.ts";
import type { Limits } from "../config/schema.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { Logger } from "../core/logger.ts";
import type { RecordTable } from "../core/record-table.ts";
import { RequestError } from "../core/request-error.ts";
import type { NoticeSender } from "../reach/ports.ts";
import type { ForeignTools } from "../tool/foreign.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry } from "../tool/registry.ts";
import type { RemoteMark } from "../tool/remote.ts";
import type { ChildCall, ChildResult, Tool, ToolContext } from "../tool/tool.ts";
import type { Parent } from "./children.ts";
import type { CrashMarks } from "./crash-marks.ts";
import type { Planning } from "./decide.ts";
import type { createFilling, Waits } from "./log.ts";
import type { CallObserver } from "./observer.ts";
import type {
  AskOpener,
  CallRecord,
  CallRecordReader,
  CallTransitions,
  EventLog,
  LeaseStore,
  OutputStore,
  SessionStore,
  StoreClock,
  StoreMembership,
  ToolMemory,
} from "./ports.ts";
import { type FormerRead, type Run, type Running, runKeyOf } from "./running.ts";
import type { Sessions } from "./sessions.ts";

/** Limits of one replica and of each call. */
export interface CallLimits extends Limits {
  readonly leaseMs: number;
  readonly askMs: number;
}

/** The stops that hold, as this replica has read them. */
export interface Stops extends Omit<RecordTable<StopRecord>, "update"> {
  /** True if what was read is young enough to start a call by it. */
  isFresh(): boolean;
}

/** Families of ports that the engine uses. */
export type EngineStore = SessionStore &
  CallTransitions &
  CallRecordReader &
  AskOpener &
  LeaseStore &
  EventLog &
  ToolMemory &
  StoreClock &
  Pick<StoreMembership, "storeIdOf" | "isShared" | "safety">;

/** Dependencies of the engine. */
export interface EngineParts extends Planning {
  store: EngineStore;
  outputs: OutputStore;
  sessions: Sessions;
  /** Reads the asks of a call, settled ones included. */
  asksOf: AskStore["asksOf"];
  listAsks: AskStore["openAsks"];
  countLongAsks: AskStore["countLongAsks"];
  getAsk: AskStore["getAsk"];
  settle: AskStore["settle"];
  takeGrant: GrantStore["takeGrant"];
  /** True unless replicas that share the store have other rules; this one then claims no calls. */
  agreesOnPolicy(): boolean;
  registry: Registry;
  stops: Stops;
  /** Built-in tools without effects: their calls may be recorded when they end. */
  effectFree: ReadonlySet<Tool>;
  /** Built-in tools that only read: their bodies need no slot. */
  readOnlyTools: ReadonlySet<Tool>;
  crashMarks: CrashMarks;
  foreign: ForeignTools;
  /** Absent where no workers can connect. */
  remoteTools?: RemoteTools | undefined;
  hooks: HookChain;
  observer: CallObserver;
  limits: CallLimits;
  /** Outcome of an ask when no approver is expected: it waits, or is denied at once. */
  unattended: "wait" | "deny";
  replicaId: string;
  /** Absent where no channel is configured. */
  notices?: NoticeSender | undefined;
  log: Logger;
}

/** The provider of tools whose bodies workers run. */
export interface RemoteTools {
  /** Returns the tool of a definition that workers serve or have served, although another one may serve its name now. */
  find(definitionId: string, workspace: string): Tool | undefined;
  /** True if a worker with a definition is connected to some replica. */
  isServed(definitionId: string): Promise<boolean>;
  /** Called by recovery about once a second for a started call without a live lease: its worker may be connected here. */
  onOrphan(ref: CallRef, mark: RemoteMark): void;
}

/** State of one replica's engine: its dependencies and the calls that it runs. The other modules of this directory are functions over it. */
export interface Engine extends EngineParts {
  /** Runs of this replica, by `runKeyOf`. */
  readonly runs: Map<string, Run>;
  /** Calls that are being accepted or claimed: the store names this replica as their owner, but they have no run yet. */
  readonly claiming: Map<string, Promise<void>>;
  /** Calls whose body runs and that are not recorded yet, by session and call id. */
  readonly unrecorded: Map<string, Map<string, UnrecordedCall>>;
  /** Ends of calls that were accepted or approved here, but whose start mark was not confirmed, by `runKeyOf`. */
  readonly unentered: Map<string, Promise<void>>;
  /** Calls that ran here and whose end could not be recorded, by `runKeyOf`. */
  readonly unsettled: Set<string>;
  /** Those of them whose body had come to its end, and calls whose end is being recorded. */
  readonly unstored: Set<string>;
  /** Work that may launch a call. A drain waits for it first, so that it sees every run. */
  readonly launching: Set<Promise<unknown>>;
  /** Sessions with news since cancel requests were last read. */
  readonly sessionsWithNews: Set<string>;
  readonly stopNews: () => void;
  isDraining: boolean;
  readonly filling: ReturnType<typeof createFilling>;
  readonly waits: Waits;
  readonly slots: Slots;
  readonly review: Review;
  /** Calls that wait for a worker, by definition and root session; those of a tree in the order in which they came. */
  readonly workerQueue: Map<string, Map<string, CallRef[]>>;
  /**
   * Number of calls of all replicas that waited for a worker, by definition, at the last recovery and the one before: a tree that
   * another replica is checking is missing in one of them.
   */
  queuedCounts: { now: ReadonlyMap<string, number>; before: ReadonlyMap<string, number> };
  /** Reads for calls that are being adopted, by session, until they begin. */
  readonly formerReads: Map<string, FormerRead>;
  /** Definitions of which calls are being claimed for workers; true if capacity has appeared since. */
  readonly claimingQueued: Map<string, boolean>;
  /** `claimWaiting` of claims.ts, called when a slot is free. A claim leads to a run, which frees a slot: a field avoids the circular import. */
  readonly whenFree: () => void;
  /** `claimQueued` of claims.ts, called when a worker may have capacity; a field for the same reason. */
  readonly whenWorkerFree: () => void;
  /** `makeCalls` of accept.ts. A body may make calls, and a call leads to a body: a field avoids the circular import. */
  readonly makeCalls: MakeCalls;
  /** `resumeParent` of parents.ts; a field for the same reason. */
  readonly resumeParent: (engine: Engine, record: CallRecord) => Promise<boolean>;
}

/** Slots for the bodies that run at one replica, and the calls that it turned away. */
export interface Slots {
  /** Number of slots that are taken. */
  takenCount: number;
  /** Calls that wait for a slot by root session, those of a tree in the order in which they came. */
  readonly waiting: Map<string, CallRef[]>;
  /** A call of the queue is being claimed. */
  isClaiming: boolean;
}

/** State of the comparison of calls that wait for an answer with the definitions that serve. */
export interface Review {
  /** The revision of the registry at the last look; undefined before the first one. */
  revision?: number;
  /** Workspaces of calls that may wait: a saved file of theirs is noticed by refreshing them. */
  readonly workspaces: Set<string>;
  /** Calls whose tool is missing, or which only workers of an earlier definition can run, and since when, by `runKeyOf`. */
  unserved: ReadonlyMap<string, number>;
  /** Time of the next look, while there are such calls. */
  next: number;
}

/** A call whose body runs and that is not recorded yet. */
export interface UnrecordedCall {
  /** Resolves when it is recorded, or when nothing is. */
  readonly recorded: Promise<unknown>;
  /** True once the store has been asked to record it: from then on the store counts it. */
  isOnItsWay: boolean;
}

/** Makes calls for the body of a running call. */
export type MakeCalls = (
  engine: Engine,
  parent: Parent,
  children: readonly ChildCall[],
  options: Parameters<ToolContext["calls"]>[1],
) => Promise<ChildResult[]>;

/** Share of a lease after which its owner no longer relies on it: the rest covers clocks and steps under way. */
const validShare = 0.8;

/** True while this replica can rely on its lease on a call, by its own clock from when the last confirmed renewal was sent. */
export function isLeaseValid({ store, limits }: Engine, { leaseConfirmed }: Pick<Running, "leaseConfirmed">): boolean {
  return !store.isShared || performance.now() < leaseConfirmed + limits.leaseMs * validShare;
}

/** True if this replica runs the call or is about to. */
export function isTaken({ runs, claiming }: Engine, ref: CallRef): boolean {
  return runs.has(runKeyOf(ref)) || claiming.has(runKeyOf(ref));
}

/**
 * Marks a call as being claimed while a step makes this replica its owner, so that recovery does not treat it as orphaned
 * before it is launched. The caller has to launch it in the same turn of the event loop in which this resolves.
 */
export async function whileClaiming<T>({ claiming }: Engine, ref: CallRef, step: () => Promise<T>): Promise<T> {
  const key = runKeyOf(ref);
  const { promise: claimed, resolve } = Promise.withResolvers<void>();
  claiming.set(key, claimed);
  return await step().finally(() =>
    setImmediate(() => {
      if (claiming.get(key) === claimed) claiming.delete(key);
      resolve();
    }),
  );
}

/** Registers work that may launch a call, so that a drain waits for it. */
export async function beforeDrain<T>({ launching }: Engine, work: Promise<T>): Promise<T> {
  launching.add(work);
  try {
    return await work;
  } finally {
    launching.delete(work);
  }
}

/** Throws DRAINING if this replica accepts no more calls. */
export function checkServing(engine: Engine): void {
  const refusal = servingRefusal(engine);
  if (refusal) throw refusal;
}

/** Builds the refusal of a new call during a drain, or where other replicas have later rules; undefined while calls are accepted. */
export function servingRefusal({ isDraining, agreesOnPolicy }: Engine): RequestError | undefined {
  if (!isDraining && agreesOnPolicy()) return undefined;
  const reason = isDraining
    ? "this replica is going away and accepts no new calls"
    : "the rules of this replica were replaced at others that share its store, so it takes no calls and no answers until it has the same rules";
  return new RequestError(
    ErrorReason.DRAINING,
    `${reason}; try again with the same ids, at another one or in a moment`,
  );
}
