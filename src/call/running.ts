import type { JsonObject } from "@bufbuild/protobuf";
import type { DecisionRecord, QuestionAnswer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Session } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { FilePart, ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AskRecord } from "../approval/ports.ts";
import type { CallRef } from "../core/call-ref.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Layers, Subject } from "../policy/model.ts";
import type { Reservation } from "../tool/remote.ts";
import type { Tool } from "../tool/tool.ts";
import type { CallHooks } from "./call-hooks.ts";
import type { ParentRun, StartGate } from "./children.ts";
import type { CallDecision } from "./decide.ts";
import type { CallObservation, createProgress } from "./observer.ts";
import type { CallOutput } from "./output.ts";
import type { CallRecord, Fence } from "./ports.ts";
import type { OpenSession } from "./sessions.ts";

/** Record of what earlier runs of a body emitted. */
export interface FormerRun {
  /** The output that it emitted: the id under which it is stored, and its size. */
  output: { id: string; bytes: number } | undefined;
  /** The title and metadata that it showed last. */
  shown: { title?: string; metadata?: JsonObject };
  /** Files of the calls that it made. */
  files: FilePart[];
}

/** A read of the log of a session for the calls that are adopted in one turn of the event loop: a lost replica may leave many. */
export interface FormerRead {
  /** The sequence number after which it begins. */
  after: number;
  /** What the runs of each call have emitted. */
  readonly former: Map<string, FormerRun>;
  readonly done: Promise<void>;
}

/** State of one running call, shared by the steps of its life. */
export interface Running extends ParentRun {
  /** The call as last read or written. */
  record: CallRecord;
  fence: Fence;
  isResumed?: true;
  /** Set for a body that goes on in its worker: the record of its earlier runs. */
  former?: FormerRun;
  readonly opened: OpenSession;
  /** Aborts the call's own signal; the reason is a `CallEnd`, or a `CallGone` for a call that is no longer ours. */
  readonly controller: AbortController;
  readonly signal: AbortSignal;
  /** Time at which the last confirmed renewal was sent, by this process's monotonic clock. */
  leaseConfirmed: number;
  /** The start mark may have been written: from then on only this run can end the call. */
  isStarting: boolean;
  /** Holds the start back until the other calls of an atomic batch may start too. */
  readonly gate: StartGate | undefined;
  /** It has one of the replica's slots. */
  hasSlot?: boolean;
  /** Its run has ended, though work of its body may still wait. */
  isOver?: true;
  /** It was released since no slot was free. */
  isTurnedAway?: boolean;
  /** Capacity of the worker that runs its body. */
  reservation?: Reservation | undefined;
  /** It was released since no worker had capacity: the definition that it waits for. */
  queuedFor?: string;
  /** Set for a call whose body runs before the call is recorded. */
  firstStep?: FirstStep;
  /** Hash of the assignment that the start of a delegated call gives out. */
  readonly assignment?: string;
  /** Records that the end of the call adds to the audit: a host's report, or the traffic of commands. */
  reports?: readonly DecisionRecord[];
  readonly observed: CallObservation;
  readonly hooks: CallHooks;
  /** The resolved tool. */
  tool?: Tool;
  /** Its asks, read together with the record; absent for a call that was just opened or claimed. */
  asks?: readonly AskRecord[];
  progress?: ReturnType<typeof createProgress>;
  output?: CallOutput;
}

/** A running call in the engine's table of runs. */
export interface Run {
  readonly call: Running;
  /** Resolves to the call as this run ended it; undefined if another step ended it. Never rejects. */
  readonly done: Promise<ToolPart | undefined>;
  /** Those that wait for it now. `done` itself would keep what waited shortly until the run ends. */
  waiters?: Set<(part: ToolPart | undefined) => void>;
}

/** A plan that was allowed, with the input it was made from. */
export interface Approved extends Pick<CallDecision, "plan" | "outside" | "files" | "heldHosts"> {
  input: unknown;
  /** Answers to the questions of the plan; absent if it has none. */
  answers?: readonly QuestionAnswer[];
}

/** A call that was judged before the step that accepts it or settles its last ask, and may start in the same step. */
export interface Startable extends Approved {
  tool: Tool;
  /** The running part. */
  start: ToolPart;
  /** The decision that lets it start. */
  decision: DecisionRecord;
}

/** A call that was judged before it was accepted. */
export interface Ready extends Startable {
  subject: Subject;
  /** The rules by which it was judged. */
  layers: Layers;
  /** A call with more repeats than this is accepted only: it takes the steps one by one, of which one may ask. */
  maxRepeats: number;
}

/** Key of a call in the engine's tables. */
export function runKeyOf({ sessionId, callId }: CallRef): string {
  return `${sessionId} ${callId}`;
}

/** Fence that the store checks for each write of this run. */
export function fenceOf({ ref, owner, epoch }: CallRecord): Fence {
  return { ref, owner, epoch };
}

/** Returns the place of an agent for policy: its session, or only a workspace. */
export function placeFor(
  { session, ancestors, workspace }: Pick<OpenSession, "ancestors" | "workspace"> & { session?: Session },
  agent: string,
): Omit<Subject, "tool" | "binding"> {
  return { session, ancestors, agent, workspace: workspaceRoot(workspace.name), directory: workspace.directory };
}

/** Subject of a call for policy and grants. */
export function subjectFor(opened: Parameters<typeof placeFor>[0], agent: string, tool: Tool): Subject {
  return { ...placeFor(opened, agent), tool: tool.name, binding: tool.permissionBinding };
}

/** The step that records a call whose body already runs. */
interface FirstStep {
  /** Files that the body has read, canonical path → SHA-256 (hex); the step records them. */
  readonly reads: Map<string, string>;
  /** Set once the step is under way: resolves when it is durable, rejects with `CallGone` if the call is not this run's. */
  taken?: Promise<void>;
  /** Takes the step, with the end of the call if it has ended. */
  readonly take: (end?: RecordedEnd) => Promise<void>;
}

/** The end of a call as one step records it together with the start. */
export interface RecordedEnd {
  part: ToolPart;
  decisions: readonly DecisionRecord[];
}

/** A run whose call may be unrecorded. */
interface Recordable {
  readonly firstStep?: FirstStep;
}

/** Resolves when the call is recorded as started by this run; throws `CallGone` if it is not. Nothing of a call is written before. */
export async function ensureRecorded({ firstStep }: Recordable): Promise<void> {
  if (!firstStep) return;
  firstStep.taken ??= firstStep.take();
  await firstStep.taken;
}

/** Begins to record the call. A failure aborts the run, which is where it shows. */
export function recordInBackground(call: Recordable): void {
  ensureRecorded(call).catch(() => undefined);
}

/** Records the call with its end in one step. Returns false if the call is recorded already, or about to be, without its end. */
export async function recordWithEnd({ firstStep }: Recordable, end: RecordedEnd): Promise<boolean> {
  if (!firstStep) return false;
  const isFirst = firstStep.taken === undefined;
  firstStep.taken ??= firstStep.take(end);
  await firstStep.taken;
  return isFirst;
}
