import type { DecisionRecord } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";

/** The step that records a call whose body already runs. */
export interface FirstStep {
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
