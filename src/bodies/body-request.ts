import { fromJson, type JsonObject, type JsonValue, type MessageInitShape, toJson } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";
import type { FilePart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type {
  WorkerAnswerSchema,
  WorkerBodyRequest,
  WorkerChildCalls,
  WorkerEndedCallSchema,
  WorkerState,
} from "../../gen/opencode/tool/v1/worker_pb.ts";
import type { ChildResult, ToolContext } from "../tool/tool.ts";

type Answer = NonNullable<MessageInitShape<typeof WorkerAnswerSchema>["answer"]>;

const maxStateBytes = 64 * 1024;

/**
 * Fulfils a request of a body; undefined is the answer without a value. Throws if the request ends the call, as a refused ask
 * does. `parts` gets the files of calls that the body made.
 */
export async function answerRequest(
  { request }: WorkerBodyRequest,
  ctx: ToolContext,
  parts: Map<string, FilePart>,
): Promise<Answer | undefined> {
  switch (request.case) {
    case "ask": {
      const { permission, patterns, always, metadata = {} } = request.value;
      await ctx.ask({ permission, patterns, always, metadata });
      return undefined;
    }
    case "calls":
      return await makeCalls(request.value, ctx, parts);
    case "getState": {
      const value = await ctx.state.get(request.value);
      return value === undefined ? undefined : { case: "state", value: fromJson(ValueSchema, value) };
    }
    case "setState":
      return await setState(request.value, ctx);
    case "questions": {
      const answers = await ctx.question(request.value.questions);
      return { case: "answers", value: { answers: [...(answers ?? [])] } };
    }
    default:
      return undefined;
  }
}

async function setState({ name, value }: WorkerState, ctx: ToolContext): Promise<Answer | undefined> {
  const json: JsonValue = value === undefined ? null : toJson(ValueSchema, value);
  if (Buffer.byteLength(JSON.stringify(json)) > maxStateBytes)
    return { case: "problem", value: `The value of ${name} has more than ${maxStateBytes} bytes. Store less.` };
  await ctx.state.set(name, json);
  return undefined;
}

async function makeCalls(
  { calls, atomic }: WorkerChildCalls,
  ctx: ToolContext,
  parts: Map<string, FilePart>,
): Promise<Answer> {
  const children = calls.map(({ tool, input = {} }) => ({ tool, input }));
  const results = await ctx.calls(children, { atomic });
  for (const part of results.flatMap(({ attachments }) => attachments)) parts.set(part.url, part);
  return { case: "calls", value: { calls: results.map(endedCall) } };
}

function endedCall({
  callId,
  status,
  title,
  text,
  metadata,
  attachments,
  commandFailure = "",
  mayHaveEffects = false,
}: ChildResult): MessageInitShape<typeof WorkerEndedCallSchema> {
  const shown: { metadata?: JsonObject } = metadata === undefined ? {} : { metadata };
  return {
    ...{ callId, title, text, commandFailure, mayHaveEffects, ...shown },
    completed: status === "completed",
    attachments: [...attachments],
  };
}
