import { createHash } from "node:crypto";
import { ToolEffects, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../core/call-ref.ts";
import { commandFailureOf, commandFailureWords } from "../core/command-failure.ts";
import { RequestError } from "../core/request-error.ts";
import { untilAborted } from "../core/within.ts";
import type { ChangeObserver, ChildCall, ChildResult, TraceContext } from "../tool/tool.ts";
import type { CallRecord, Fence } from "./ports.ts";
import type { OpenSession } from "./sessions.ts";

/** Barrier for calls that start together: each arrives when it may start, and goes on when all have arrived. */
export type StartGate = ReturnType<typeof createStartGate>;

/** Creates a gate for `count` calls, which opens after `beforeStart` of the observer. */
export function createStartGate(count: number, changes: ChangeObserver = ignored) {
  const opened = Promise.withResolvers<void>();
  // A call that waits for nothing else observes a failure; without such a call there is nothing to report it to.
  opened.promise.catch(() => {});
  const files = new Set<string>();
  let missing = count;
  let isOpen = false;

  async function open(): Promise<void> {
    await changes.beforeStart([...files]);
    isOpen = true;
  }

  return {
    get isOpen() {
      return isOpen;
    },
    /** Reports what one of the calls is about to write. */
    beforeWrite: changes.beforeWrite,
    /**
     * Resolves when all have arrived; `changed` are the files that the call will change. Throws the signal's reason if that is aborted
     * first.
     */
    async arrive(changed: readonly string[], signal: AbortSignal): Promise<void> {
      for (const file of changed) files.add(file);
      missing -= 1;
      if (missing === 0) opened.resolve(open());
      await untilAborted(opened.promise, signal);
    },
  };
}

const ignored: ChangeObserver = { beforeStart: async () => {}, beforeWrite: async () => {} };

/** The run of a parent, as far as parking it changes that. */
export interface ParentRun {
  readonly record: CallRecord;
  readonly fence: Fence;
  /** Set for a call whose body is entered again, or goes on in its worker. */
  readonly isResumed?: true;
  /** Parks a durable parent that waits for its calls. */
  park?: () => Promise<void>;
  /** True from when the step that parks it is sent. */
  isParked?: boolean;
}

/** The call whose body makes child calls. */
export interface Parent {
  record: CallRecord;
  opened: OpenSession;
  signal: AbortSignal;
  /** Its run, for calls that it waits for. */
  run?: ParentRun;
  /** Trace context of the step that makes the calls. */
  trace?: TraceContext;
}

/** A child call before it is accepted. */
export interface ChildRequest extends ChildCall {
  callId: string;
  gate?: StartGate | undefined;
  /** True if the parent does not wait for it. */
  background?: boolean;
}

/** Steps of the engine that child calls take. */
export interface ChildSteps {
  enter(request: ChildRequest): Promise<CallRef>;
  ended(ref: CallRef): Promise<ToolPart>;
  cancel(ref: CallRef, message: string): Promise<unknown>;
  /** True if the parent is no longer this run's: its calls stay as they are then. */
  isLeft(): boolean;
}

/**
 * Runs calls for a body at the same time and returns their results. Each is judged, asked for and recorded like any other
 * call, and is cancelled when the parent is aborted. With a gate none starts before all may. The `key` names the calls in their body.
 */
export async function runChildren(
  parent: Parent,
  children: readonly ChildCall[],
  gate: StartGate | undefined,
  { enter, ended, cancel, isLeft }: ChildSteps,
  key?: string,
): Promise<ChildResult[]> {
  const entered = new Map<string, CallRef>();
  /** Reason for which open children end, and later ones end at once. */
  let endReason: string | undefined;

  async function endAll(reason: string): Promise<void> {
    endReason ??= reason;
    await Promise.all([...entered.values()].map((ref) => cancel(ref, reason)));
  }

  const stop = () => {
    // Another run of the parent goes on with them, or they have ended with it.
    if (isLeft()) return;
    // A child that cannot be cancelled now is stopped by its own deadline.
    endAll("The call that made this one was stopped.").catch(() => {});
  };

  async function run(child: ChildCall, number: number): Promise<ChildResult> {
    const callId = childCallId(parent.record.ref.callId, key === undefined ? number : `r${key}.${number}`);
    try {
      const ref = await enter({ ...child, callId, gate });
      entered.set(callId, ref);
      if (endReason !== undefined) await cancel(ref, endReason);
      return resultOf(callId, await ended(ref));
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      return { callId, status: "error", title: child.tool, text: error.message, attachments: [] };
    } finally {
      entered.delete(callId);
      if (gate && !gate.isOpen && !isLeft())
        await endAll(`Nothing was run, because call ${callId} beside it could not start.`);
    }
  }

  parent.signal.addEventListener("abort", stop, { once: true });
  if (parent.signal.aborted) stop();
  try {
    return await Promise.all(children.map((child, index) => run(child, index + 1)));
  } finally {
    parent.signal.removeEventListener("abort", stop);
  }
}

/**
 * True for a call of an atomic batch. Only the replica of the batch knows when it may start, so no other may claim it. A caller's
 * metadata may say the same of a call that has no parent, which means nothing.
 */
export function startsWithOthers({ metadata, parentCallId }: ToolPart): boolean {
  return parentCallId !== "" && metadata?.startsWithOthers === true;
}

/** Returns the id of a child call, which has at most 128 characters. */
export function childCallId(parentId: string, number: number | string): string {
  const isShort = parentId.length <= 120 && parentId.length + `.${number}`.length <= 128;
  const prefix = isShort ? parentId : createHash("sha256").update(parentId).digest("hex");
  return `${prefix}.${number}`;
}

function resultOf(callId: string, { state, tool }: ToolPart): ChildResult {
  if (state.case === "completed") {
    const failure = commandFailureOf(state.value.metadata);
    return {
      callId,
      status: "completed",
      title: state.value.title,
      text: state.value.output,
      attachments: state.value.attachments,
      mayHaveEffects: true,
      ...(failure && { commandFailure: commandFailureWords(failure) }),
      ...(state.value.metadata && { metadata: state.value.metadata }),
    };
  }
  const text = state.case === "error" ? state.value.error : "It has not ended.";
  const mayHaveEffects = state.case !== "error" || state.value.effects !== ToolEffects.NONE;
  return { callId, status: "error", title: tool, text, attachments: [], mayHaveEffects };
}
