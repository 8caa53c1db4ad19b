import { create, type JsonObject } from "@bufbuild/protobuf";
import type { Value } from "@bufbuild/protobuf/wkt";
import {
  type FilePart,
  ToolEffects,
  type ToolErrorReason,
  ToolExecutor,
  type ToolPart,
  ToolPartSchema,
  ToolStateCompletedSchema,
  ToolStateErrorSchema,
  ToolStatePendingSchema,
  ToolStateRunningSchema,
  ToolTimeSchema,
  ToolTimeWithEndSchema,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Plan } from "../tool/tool.ts";

type State = ToolPart["state"];
type Case = Exclude<State["case"], undefined>;

const successors: Record<Case, readonly Case[]> = {
  // Pending again when hooks or an approver changed the input.
  pending: ["pending", "running", "error"],
  // Running again when an idempotent tool lost its executor.
  running: ["running", "completed", "error"],
  completed: [],
  error: [],
};

/** The only way from one state to the next; throws on a step that the life of a call does not have. */
export function advance(part: ToolPart, to: State): ToolPart {
  const from = part.state.case;
  if (from === undefined || to.case === undefined || !successors[from].includes(to.case)) {
    throw new Error(`call ${part.callId} cannot go from ${from} to ${to.case}`);
  }
  return create(ToolPartSchema, { ...part, permissionIds: [], state: to });
}

/** Returns the part of a new call, accepted and not started. */
export function pendingPart(
  call: Pick<ToolPart, "id" | "sessionId" | "messageId" | "callId" | "tool" | "agent" | "requester"> & {
    executor?: ToolExecutor;
    input: JsonObject;
    metadata?: JsonObject;
    callerUid?: number | undefined;
    person?: ToolPart["person"] | undefined;
    background?: boolean;
    parentCallId?: string;
  },
): ToolPart {
  const { input, ...part } = call;
  return create(ToolPartSchema, {
    ...part,
    type: "tool",
    state: { case: "pending", value: create(ToolStatePendingSchema, { status: "pending", input }) },
  });
}

/** Returns the call with the input of an approver's answer. The call must not have started. */
export function edited(part: ToolPart, input: JsonObject, by: string): ToolPart {
  const value = create(ToolStatePendingSchema, { status: "pending", input });
  return create(ToolPartSchema, {
    ...advance(part, { case: "pending", value }),
    originalInput: part.originalInput ?? inputOf(part),
    editedBy: by,
  });
}

/** Returns the call with the input that before hooks left. */
export function prepared(part: ToolPart, input: JsonObject): ToolPart {
  return advance(part, {
    case: "pending",
    value: create(ToolStatePendingSchema, { status: "pending", input }),
  });
}

/** Returns the running part, which carries the start mark and names the session of a subagent that starts. */
export function running(
  part: ToolPart,
  { title, childSession = "" }: Pick<Plan, "title" | "childSession">,
  now: number,
): ToolPart {
  const started = advance(part, {
    case: "running",
    value: create(ToolStateRunningSchema, {
      status: "running",
      input: inputOf(part),
      title,
      time: create(ToolTimeSchema, { start: now }),
    }),
  });
  return childSession === "" ? started : create(ToolPartSchema, { ...started, childSessionId: childSession });
}

/** Returns the running part with the worker that runs the body; without one, as it is. */
export function runningAt(part: ToolPart, at: { worker: string; buildId: string } | undefined): ToolPart {
  if (at === undefined) return part;
  return create(ToolPartSchema, { ...part, executor: ToolExecutor.WORKER, worker: at.worker, buildId: at.buildId });
}

/** Returns the terminal part of a call with a result. */
export function completed(
  part: ToolPart,
  result: {
    title: string;
    output: string;
    metadata: JsonObject;
    attachments: FilePart[];
    structuredOutput?: Value;
  },
  now: number,
): ToolPart {
  return advance(part, {
    case: "completed",
    value: create(ToolStateCompletedSchema, {
      ...result,
      status: "completed",
      input: inputOf(part),
      time: times(part, now),
    }),
  });
}

/** Returns the terminal part of a call without a result. Effects are NONE for a call that was not started, whatever `failure` says. */
export function failed(
  part: ToolPart,
  failure: { reason: ToolErrorReason; error: string; effects?: ToolEffects; metadata?: JsonObject },
  now: number,
): ToolPart {
  const started = part.state.case === "running";
  return advance(part, {
    case: "error",
    value: create(ToolStateErrorSchema, {
      status: "error",
      input: inputOf(part),
      error: failure.error,
      ...(failure.metadata && { metadata: failure.metadata }),
      time: times(part, now),
      reason: failure.reason,
      effects: started ? (failure.effects ?? ToolEffects.UNKNOWN) : ToolEffects.NONE,
    }),
  });
}

/** True if the call has ended. */
export function isTerminal(part: ToolPart): boolean {
  return part.state.case === "completed" || part.state.case === "error";
}

/** Returns the input that runs, ran, or would have run. */
export function inputOf(part: ToolPart): JsonObject {
  return part.state.value?.input ?? {};
}

function times(part: ToolPart, end: number) {
  const start = part.state.case === "running" ? part.state.value.time?.start : undefined;
  return create(ToolTimeWithEndSchema, { start: start ?? end, end });
}
