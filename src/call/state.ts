import { create, type JsonObject } from "@bufbuild/protobuf";
import type { Value } from "@bufbuild/protobuf/wkt";
import {
  type FilePart,
  ToolEffects,
  type ToolErrorReason,
  type ToolPart,
  ToolPartSchema,
  ToolStateCompletedSchema,
  ToolStateErrorSchema,
  ToolStatePendingSchema,
  ToolStateRunningSchema,
  ToolTimeSchema,
  ToolTimeWithEndSchema,
} from "../../gen/opencode/tool/v1/tool_pb.ts";

type State = ToolPart["state"];
type Case = Exclude<State["case"], undefined>;

const successors: Record<Case, readonly Case[]> = {
  // Once more, where hooks changed the input.
  pending: ["pending", "running", "error"],
  // Once more, where a tool that may be repeated lost its executor.
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

/** A new call, accepted and not started. */
export function pendingPart(
  call: Pick<ToolPart, "id" | "sessionId" | "messageId" | "callId" | "tool" | "agent"> & {
    input: JsonObject;
    metadata?: JsonObject;
  },
): ToolPart {
  const { input, ...part } = call;
  return create(ToolPartSchema, {
    ...part,
    type: "tool",
    state: { case: "pending", value: create(ToolStatePendingSchema, { status: "pending", input }) },
  });
}

/** The same call with other arguments, which somebody answered with; it must not be started. */
export function edited(part: ToolPart, input: JsonObject, by: string): ToolPart {
  const value = create(ToolStatePendingSchema, { status: "pending", input });
  return create(ToolPartSchema, {
    ...advance(part, { case: "pending", value }),
    originalInput: part.originalInput ?? inputOf(part),
    editedBy: by,
  });
}

/** The call with the input that hooks left. */
export function prepared(part: ToolPart, input: JsonObject): ToolPart {
  return advance(part, {
    case: "pending",
    value: create(ToolStatePendingSchema, { status: "pending", input }),
  });
}

/** The start mark. */
export function running(part: ToolPart, title: string, now: number): ToolPart {
  return advance(part, {
    case: "running",
    value: create(ToolStateRunningSchema, {
      status: "running",
      input: inputOf(part),
      title,
      time: create(ToolTimeSchema, { start: now }),
    }),
  });
}

/** The end with a result. */
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

/** The end without a result. Effects are NONE for a call that was not started, whatever is said. */
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

/** Whether the call has ended. */
export function isTerminal(part: ToolPart): boolean {
  return part.state.case === "completed" || part.state.case === "error";
}

/** The input that runs, ran, or would have run. */
export function inputOf(part: ToolPart): JsonObject {
  return part.state.value?.input ?? {};
}

function times(part: ToolPart, end: number) {
  const start = part.state.case === "running" ? part.state.value.time?.start : undefined;
  return create(ToolTimeWithEndSchema, { start: start ?? end, end });
}
