import { create, type JsonObject } from "@bufbuild/protobuf";
import { type ToolProgress, ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { EndedWait } from "../approval/ports.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { TraceContext } from "../tool/tool.ts";
import type { CallRecord, Store } from "./ports.ts";
import { isTerminal } from "./state.ts";

/** Steps of a call that can take long. */
export type CallStep = "plan" | "wait" | "execute";

/** Observes calls, for logs, metrics and spans. Its methods must neither throw nor block: the call does not wait for them. */
export interface CallObserver {
  /** Called when this replica begins to run the call; `wait` if it waited without an owner before. */
  began(call: CallRecord, wait?: WaitTime): CallObservation;
  /** Called once across all replicas, on the one that recorded the call's terminal state. */
  ended(end: { part: ToolPart; isKnownTool: boolean }): void;
  /** Called when the wait of a call ends, on the replica that settled its last open ask. */
  waited(wait: { part: ToolPart; isKnownTool: boolean; ms: number }): void;
  /** Called when a decision is recorded to which the shadow rules come otherwise; UNSPECIFIED if they could not be judged. */
  differed(from: PermissionAction, to: PermissionAction): void;
}

/** From when until when a call waited for its asks; ms since the epoch. */
export interface WaitTime {
  from: number;
  to: number;
}

/** Observation of one call while it runs on this replica. */
export interface CallObservation {
  /** Runs a step; `work` gets the trace context for whatever it starts. */
  step<T>(name: CallStep, work: (trace: TraceContext | undefined) => Promise<T>): Promise<T>;
  /** Called when this replica stops running the call: it has ended, or another replica may continue it. */
  over(part: ToolPart): void;
}

/**
 * Decorates the steps that can write a terminal part, `openCall`, `finishCall` and `settle`: each such part is passed to `ended`
 * once it is durable, regardless of who requested the step. The waits that a settlement ends are passed to `waited`.
 */
export function notifyEnds(store: Store, ended: (part: ToolPart) => void, waited: (wait: EndedWait) => void): Store {
  const { calls, permissions } = store;
  return {
    ...store,
    calls: {
      ...calls,
      // The id changes when a shared store loses its contents; a copy would go stale.
      get storeId() {
        return calls.storeId;
      },
      async openCall(step) {
        const opened = await calls.openCall(step);
        if (opened.created && isTerminal(opened.record.part)) ended(opened.record.part);
        return opened;
      },
      async finishCall(step) {
        const written = await calls.finishCall(step);
        if (written === undefined || written === "open children") return written;
        for (const child of step.children ?? []) ended(child.part);
        ended(written);
        return written;
      },
    },
    permissions: {
      ...permissions,
      async settle(settlement) {
        const settled = await permissions.settle(settlement);
        if (settled.result !== "won") return settled;
        for (const { part } of settlement.calls) if (part && isTerminal(part)) ended(part);
        for (const wait of settlement.waits ?? []) waited(wait);
        return settled;
      },
    },
  };
}

/** Size of title and metadata: they are in the terminal part too, whose event also holds the result. */
const maxShownBytes = 262_144;
const emitMs = 50;

/**
 * Creates the title and metadata that a running tool shows. `emit` gets the first report at once, then the latest, at most every
 * 50 ms, in order.
 */
export function createProgress(callId: string, emit: (event: ToolProgress) => Promise<void>) {
  const shown: { title?: string; metadata?: JsonObject } = {};
  let timer: NodeJS.Timeout | undefined;
  let isLate = false;
  let emitted = Promise.resolve();

  function emitLatest(): void {
    isLate = false;
    timer = setTimeout(() => {
      timer = undefined;
      if (isLate) emitLatest();
    }, emitMs);
    const event = create(ToolProgressSchema, { callId, ...shown });
    // A failure has already aborted the call.
    emitted = emitted.then(() => emit(event)).catch(() => undefined);
  }

  return {
    shown,
    /** Replaces title or metadata; throws `ToolFailure` if they are too large for an event. */
    update(update: { title?: string; metadata?: JsonObject }): void {
      const size = Buffer.byteLength(JSON.stringify({ ...shown, ...update }));
      if (size > maxShownBytes) {
        throw new ToolFailure(
          `Title and metadata that the tool shows have ${size} bytes; at most ${maxShownBytes} are possible. Return the rest as output.`,
        );
      }
      Object.assign(shown, update);
      if (timer) isLate = true;
      else emitLatest();
    },
    /** Resolves when all that was shown is emitted. */
    async flush(): Promise<void> {
      clearTimeout(timer);
      if (isLate) emitLatest();
      await emitted;
    },
    /** Emits no more; the terminal part has the latest title and metadata. */
    stop(): void {
      clearTimeout(timer);
    },
  };
}
