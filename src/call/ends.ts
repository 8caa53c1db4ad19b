import type { JsonObject } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  ToolEffects,
  ToolErrorReason,
  ToolErrorReasonSchema,
  type ToolPart,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Judged } from "../approval/judge-asks.ts";
import type { AskRecord } from "../approval/ports.ts";
import type { Logger } from "../core/logger.ts";
import { isStoreUnavailable, RequestError } from "../core/request-error.ts";
import {
  ChangedAfterApproval,
  ExecutorLost,
  HookFailure,
  InvalidInput,
  InvalidOutput,
  OutputLimit,
  ToolFailure,
} from "../tool/errors.ts";
import type { Engine } from "./engine.ts";
import type { CallRecord, EndedChild, FinishCallStep } from "./ports.ts";
import { type Running, runKeyOf } from "./running.ts";
import { failed, isTerminal } from "./state.ts";

/** Reason for which the engine ends a call; also the reason of the call's aborted signal. */
export class CallEnd extends Error {
  override name = "CallEnd";
  readonly reason: ToolErrorReason;
  /** The decisions, if rules or hooks end it. */
  readonly by: Judged | undefined;
  constructor(reason: ToolErrorReason, message: string, by?: CallEnd["by"]) {
    super(message);
    this.reason = reason;
    this.by = by;
  }
}

/** Thrown when a call is no longer ours to write: it has ended, or another replica owns it. */
export class CallGone extends Error {
  override name = "CallGone";
}

/** Longest life of a call, waits for approvers included, unless a rule says who has to approve. */
export const maxLifeMs = 24 * 3_600_000;

/** Times that the body of an idempotent tool may be entered. */
export const maxIdempotentAttempts = 3;

/** True if a call is older than a call may become. It may have waited longer for those who have to approve its start. */
export function isTooOld(
  { store }: Pick<Engine, "store">,
  { spec, part }: Pick<CallRecord, "spec" | "part">,
  asks: readonly AskRecord[],
): boolean {
  const age = store.now() - spec.accepted;
  const isHeld = spec.delegated !== undefined || isOfMcp(part);
  return age > maxLifeMs && (isHeld || age - neededWaitMs(part, asks, store.now()) > maxLifeMs);
}

/** Returns the time in which a request with a `need` was open before the start. */
function neededWaitMs({ state }: ToolPart, asks: readonly AskRecord[], now: number): number {
  const start = state.case === "running" ? (state.value.time?.start ?? 0) : now;
  const waits = asks.flatMap(({ request: { created, need }, settled }) =>
    need && created < start ? { from: created, to: settled?.time ?? now } : [],
  );
  let [total, end] = [0, 0];
  for (const { from, to } of waits.toSorted((one, other) => one.from - other.from)) {
    total += Math.max(0, to - Math.max(from, end));
    end = Math.max(end, to);
  }
  return total;
}

/** True for a call of an MCP client: our MCP server writes this key. Another caller that does shortens what it waits for. */
const isOfMcp = ({ metadata }: ToolPart) => metadata?.mcp !== undefined;

/** True if nothing waits with a call: no host, MCP client, batch or other call, and no body that was entered. */
export const waitsAlone = ({ gate, record: { part, spec } }: Pick<Running, "gate" | "record">): boolean =>
  part.state.case === "pending" && !gate && !spec.delegated && !spec.parent && !isOfMcp(part);

/** Returns the end of a call that is too old. */
export function tooOld(): CallEnd {
  return new CallEnd(ToolErrorReason.TIMEOUT, "The call was not done within 24 hours and was stopped.");
}

/** Returns the end of a denied call, with what was denied and why. */
export function denied(by: Judged): CallEnd {
  const deciding = by.decisions.find(({ action }) => action === PermissionAction.DENY);
  const what = deciding ? `${deciding.permission} ${JSON.stringify(deciding.pattern)}` : "This call";
  const why = deciding?.reason ?? "a rule denies it";
  return new CallEnd(
    ToolErrorReason.DENIED,
    `${what} is not allowed: ${why}. Do not try it again; go on without it.`,
    by,
  );
}

/** Returns the error of a call whose tool is another one than the one that was offered. */
export const staleText = (tool: string, isServed = true) =>
  isServed
    ? `The tool "${tool}" has changed since it was offered. List the tools again and repeat the call as it is now.`
    : `The tool "${tool}" is not there any more. List the tools again and use another one.`;

/** The error of a call that ran, and whose result is lost since the store was away. */
export const notStoredText =
  "The tool ran, but the store was not available, so its result could not be recorded. It is not run again: look at what it did before you repeat it.";

const notRunText = "The store was not available, so the call was not run. Try it again as a new call.";

/** Failure to report to the caller. */
export interface CallFailure {
  reason: ToolErrorReason;
  error: string;
  effects?: ToolEffects;
  metadata?: JsonObject;
}

/** Builds the failure to report to the caller. Details that only operators may see are logged. */
export function callFailure(cause: unknown, { record, tool }: Running, log: Logger): CallFailure {
  const readOnly = tool?.definition.annotations?.readOnly === true;
  const effects = readOnly ? ToolEffects.NONE : ToolEffects.UNKNOWN;
  if (cause instanceof CallEnd) return { reason: cause.reason, error: cause.message, effects };
  if (cause instanceof InvalidInput) return { reason: ToolErrorReason.INVALID_INPUT, error: cause.message };
  if (cause instanceof ChangedAfterApproval) {
    return { reason: ToolErrorReason.CHANGED_AFTER_APPROVAL, error: cause.message, effects: ToolEffects.NONE };
  }
  if (cause instanceof InvalidOutput) {
    log.warn("a tool returned output that does not fit its schema", { error: cause, tool: record.part.tool });
    return { reason: ToolErrorReason.INVALID_OUTPUT, error: cause.message, effects };
  }
  if (cause instanceof HookFailure) {
    log.warn("a plugin's hook stopped a call", { error: cause, callId: record.ref.callId, tool: record.part.tool });
    return { reason: ToolErrorReason.FAILED, error: `${cause.message}.`, effects };
  }
  if (cause instanceof ExecutorLost) return { reason: ToolErrorReason.EXECUTOR_LOST, error: cause.message, effects };
  if (cause instanceof OutputLimit) return { reason: ToolErrorReason.OUTPUT_LIMIT, error: cause.message, effects };
  if (cause instanceof ToolFailure) {
    const known = cause.hadNoEffects ? ToolEffects.NONE : effects;
    return { reason: ToolErrorReason.FAILED, error: cause.message, effects: known };
  }
  if (cause instanceof RequestError && cause.reason === ErrorReason.QUOTA_EXCEEDED) {
    return { reason: ToolErrorReason.FAILED, error: `The call could not go on: ${cause.message}.`, effects };
  }
  const { callId, sessionId } = record.ref;
  if (isStoreUnavailable(cause)) {
    log.warn("the store was away while a call ran", { error: cause, callId, sessionId, tool: record.part.tool });
    if (record.part.state.case !== "running") return { reason: ToolErrorReason.FAILED, error: notRunText };
    return { reason: ToolErrorReason.RESULT_NOT_STORED, error: notStoredText, effects };
  }
  log.error("defect in a tool call", { error: cause, callId, sessionId, tool: record.part.tool });
  return {
    reason: ToolErrorReason.FAILED,
    error: `The tool "${record.part.tool}" broke. The service's log has the cause, under this call's id.`,
    effects,
  };
}

/**
 * Ends a call, and in the same step the open calls that it made and waits for: nothing collects their results any more, and an
 * approver must not start them. Returns the part as stored; undefined if the guard fails or the call has already ended.
 */
export async function endCall(engine: Engine, step: Omit<FinishCallStep, "children">): Promise<ToolPart | undefined> {
  let children: EndedChild[] = [];
  for (;;) {
    const written = await engine.store.finishCall({ ...step, children });
    if (written !== "open children") {
      if (written)
        for (const { ref } of children) engine.runs.get(runKeyOf(ref))?.call.controller.abort(new CallGone());
      return written;
    }
    children = await endsOfChildren(engine, step);
  }
}

/** Ends a call with an error, unless it has changed since it was read; returns whether it did. */
export async function endAsRead(
  engine: Engine,
  { ref, part, version }: Pick<CallRecord, "ref" | "part" | "version">,
  failure: Parameters<typeof failed>[1],
): Promise<boolean> {
  const ended = failed(part, failure, engine.store.now());
  return (await endCall(engine, { ref, guard: { version }, part: ended })) !== undefined;
}

async function endsOfChildren(
  { store }: Engine,
  { ref: { sessionId, callId }, part }: Pick<FinishCallStep, "ref" | "part">,
): Promise<EndedChild[]> {
  const listed = await store.listCalls({ sessionId, open: true, limit: 10_000 });
  // The list is no snapshot: a call on it may have ended since.
  const open = listed.filter((call) => !isTerminal(call.part));
  const below = (id: string): CallRecord[] =>
    open.filter(({ spec }) => spec.parent === id).flatMap((child) => [child, ...below(child.ref.callId)]);
  const end = { reason: ToolErrorReason.CANCELLED, error: withdrawnText(part) };
  return below(callId).map((child) => ({
    ref: child.ref,
    version: child.version,
    part: failed(child.part, end, store.now()),
  }));
}

function withdrawnText({ callId, state, tool }: ToolPart): string {
  const how = state.case === "error" ? ToolErrorReasonSchema.value[state.value.reason]?.localName : "completed";
  return `Withdrawn: call ${callId} (${tool}), which made this call, has ended (${how}).`;
}
