import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import type { LayerRules, Layers } from "../policy/model.ts";
import { CallGone } from "./ends.ts";
import { type Engine, type UnrecordedCall, whileClaiming } from "./engine.ts";
import { launchCall, newRunning, runCall } from "./launch.ts";
import type { CallRecord, OpenCallStep, OpenedCall } from "./ports.ts";
import { type Ready, type RecordedEnd, type Running, recordInBackground, runKeyOf } from "./running.ts";
import type { OpenSession } from "./sessions.ts";
import { isTerminal } from "./state.ts";

/** Time that a body may run before its call is recorded. */
const maxUnrecordedMs = 10;

/**
 * Checks if the body of a call may run before the call is recorded: of a built-in tool without effects, without after hooks. A
 * process that crashes meanwhile leaves no call behind, so a request during which this happened repeatedly is recorded first.
 */
export function mayRecordOnce(
  engine: Engine,
  { ref, spec }: Pick<CallRecord, "ref" | "spec">,
  { tool }: Ready,
): boolean {
  const { crashMarks, effectFree, hooks, limits } = engine;
  if (!effectFree.has(tool) || hooks.has("tool.execute.after")) return false;
  return countUnrecorded(engine, ref) < limits.runningCalls && !crashMarks.isSuspect(spec.requestDigest);
}

/** Counts the calls of a session that this replica runs and that the store cannot count yet. */
export function countUnrecorded({ unrecorded }: Engine, { sessionId }: Pick<CallRef, "sessionId">): number {
  let count = 0;
  for (const { isOnItsWay } of unrecorded.get(sessionId)?.values() ?? []) if (!isOnItsWay) count += 1;
  return count;
}

/** A run whose call is not recorded yet. */
interface UnrecordedRun {
  readonly run: Running;
  readonly ready: Ready;
  readonly step: OpenCallStep;
  readonly call: UnrecordedCall;
  /** Result of the step that records the call; undefined if none is. */
  readonly recorded: PromiseWithResolvers<OpenedCall | undefined>;
  readonly done: PromiseWithResolvers<ToolPart | undefined>;
  /** Removes the crash mark. */
  readonly unmark: () => void;
}

/**
 * Runs the body of a call before the call is recorded. If it ends within 10 ms, one step accepts, starts and ends the call.
 * After 10 ms, or as soon as the body writes anything, one step accepts and starts the call, and the body continues. Returns
 * undefined if nothing was recorded, for example because rules have changed: the call has to be judged again.
 */
export async function recordOnce(
  engine: Engine,
  opened: OpenSession,
  ready: Ready,
  step: OpenCallStep,
): Promise<OpenedCall | undefined> {
  const run = newRunning(engine, expectedRecord(step, ready), opened, performance.now());
  const [recorded, done] = [
    Promise.withResolvers<OpenedCall | undefined>(),
    Promise.withResolvers<ToolPart | undefined>(),
  ];
  const unmark = engine.crashMarks.enter(step.spec.requestDigest);
  const call: UnrecordedCall = { recorded: recorded.promise, isOnItsWay: false };
  const unrecorded: UnrecordedRun = { run, ready, step, call, recorded, done, unmark };
  run.firstStep = { reads: new Map(), take: (end) => takeFirstStep(engine, unrecorded, end) };
  remember(engine, step.ref, unrecorded.call);
  const timer = setTimeout(() => recordInBackground(run), maxUnrecordedMs);
  void runCall(engine, run, ready).then((part) => {
    clearTimeout(timer);
    unmark();
    if (run.firstStep?.taken === undefined) recorded.resolve(undefined);
    if (engine.runs.get(runKeyOf(step.ref))?.call === run) engine.runs.delete(runKeyOf(step.ref));
    done.resolve(part);
  });
  return await recorded.promise.finally(() => forget(engine, step.ref, unrecorded.call));
}

/** Returns the record that the first step will write, so that the body can run under the call's fence before. */
function expectedRecord({ ref, spec, owner }: OpenCallStep, { start }: Ready): CallRecord {
  return { ref, part: start, spec, openedSeq: 0, version: 2, epoch: 1, owner, attempts: 1, repeats: 0 };
}

/** Records the call. Throws `CallGone`, and stops the run, if the call is not this run's to continue. */
async function takeFirstStep(engine: Engine, unrecorded: UnrecordedRun, end: RecordedEnd | undefined): Promise<void> {
  const { run, ready, step, recorded, done } = unrecorded;
  // A body that has ended can crash nothing.
  if (end) unrecorded.unmark();
  try {
    if (!isStillAllowed(engine, ready)) throw new CallGone();
    const sent = performance.now();
    unrecorded.call.isOnItsWay = true;
    const result = await whileClaiming(engine, step.ref, () =>
      engine.store.openCall(firstStep(engine, unrecorded, end)),
    );
    const { record, created } = result;
    recorded.resolve(result);
    if (!created) throw new CallGone();
    if (record.attempts === 0) {
      // It repeats the calls before it, so it has to ask.
      launchCall(engine, record, run.opened, sent);
      throw new CallGone();
    }
    run.record = record;
    run.leaseConfirmed = sent;
    if (!isTerminal(record.part)) engine.runs.set(runKeyOf(step.ref), { call: run, done: done.promise });
  } catch (cause) {
    run.controller.abort(new CallGone());
    if (cause instanceof CallGone) recorded.resolve(undefined);
    else recorded.reject(cause);
    throw new CallGone();
  }
}

function firstStep(engine: Engine, { run, step: given }: UnrecordedRun, end: RecordedEnd | undefined): OpenCallStep {
  const step = { ...given, reads: run.firstStep?.reads, unrecordedCalls: countUnrecorded(engine, given.ref) };
  if (end === undefined) return step;
  return { ...step, end: end.part, decisions: [...(step.decisions ?? []), ...end.decisions] };
}

/** Checks that the rules and guards by which the call was allowed are still in force. */
function isStillAllowed({ layersFor, registry }: Engine, { layers, subject }: Ready): boolean {
  const now = layersFor(subject);
  return (
    registry.guardProblem(subject.workspace) === undefined &&
    areSame(layers.wide, now.wide) &&
    areSame(layers.narrow, now.narrow)
  );
}

/** Compares rules by the identity of their lists, which changes with their content. */
function areSame(before: Layers["wide"], now: Layers["wide"]): boolean {
  const isSame = (layer: LayerRules, i: number) => layer.rules === now[i]?.rules && layer.problem === now[i]?.problem;
  return before.length === now.length && before.every(isSame);
}

/** Makes a call findable while it is in memory alone. */
function remember({ unrecorded }: Engine, { sessionId, callId }: CallRef, call: UnrecordedCall): void {
  const calls = unrecorded.get(sessionId) ?? new Map<string, UnrecordedCall>();
  unrecorded.set(sessionId, calls.set(callId, call));
}

function forget({ unrecorded }: Engine, { sessionId, callId }: CallRef, call: UnrecordedCall): void {
  const calls = unrecorded.get(sessionId);
  // Another request with the same ids may have taken its place.
  if (calls?.get(callId) === call) calls.delete(callId);
  if (calls?.size === 0) unrecorded.delete(sessionId);
}

/** Waits until a call that this replica runs unrecorded is recorded. */
export async function untilRecorded({ unrecorded }: Engine, sessionId: string, callId: string): Promise<void> {
  // The request that made the call gets the failure.
  await unrecorded
    .get(sessionId)
    ?.get(callId)
    ?.recorded.catch(() => undefined);
}
