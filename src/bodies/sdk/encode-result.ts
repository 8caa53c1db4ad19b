import { create, fromJson, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";
import {
  type WorkerAttachmentSchema,
  WorkerCompletedSchema,
  type WorkerFailedSchema,
  WorkerFailure,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { ChangedAfterApproval, InvalidInput, InvalidOutput, ToolFailure } from "../../tool/errors.ts";
import { plainJson } from "../../tool/plain-json.ts";
import type { ToolResult } from "../../tool/tool.ts";
import { messageOf } from "./message-of.ts";
import type { RunningBody } from "./running-body.ts";

/** Largest output inside the result; a longer one is sent in pieces before it. */
const maxInlineLength = 131_072;
const maxResultBytes = 1_000_000;

/** Sends long output and files of a result, and returns the rest. */
export async function completedOf(
  body: RunningBody,
  result: ToolResult,
): Promise<MessageInitShape<typeof WorkerCompletedSchema>> {
  const { title, note, metadata, structured } = result;
  const output = await outputOf(body, result.output);
  const attachments: MessageInitShape<typeof WorkerAttachmentSchema>[] = [];
  for (const [index, file] of (result.attachments ?? []).entries()) {
    if ("data" in file) {
      const blob = index + 1;
      await body.write(blob, file.data);
      attachments.push({ blob, mime: file.mime, filename: file.filename ?? "" });
    } else attachments.push({ part: file });
  }
  const completed = {
    ...(title !== undefined && { title: String(title) }),
    ...(output !== undefined && { output }),
    ...(note !== undefined && { note }),
    ...(metadata && { metadata: plainJson(metadata) }),
    ...(structured !== undefined && { structured: fromJson(ValueSchema, structured) }),
    attachments,
  };
  const { length } = toBinary(WorkerCompletedSchema, create(WorkerCompletedSchema, completed));
  if (length <= maxResultBytes) return completed;
  throw new ToolFailure(
    `The result has ${length} bytes beside its output and its files, at most ${maxResultBytes} are allowed. Return less metadata.`,
  );
}

async function outputOf(body: RunningBody, output: string | undefined): Promise<string | undefined> {
  if (output === undefined || output.length <= maxInlineLength) return output;
  if (body.writtenBytes() > 0) {
    throw new ToolFailure(
      `The tool wrote output and returned another one of ${output.length} characters. Return at most ${maxInlineLength} then.`,
    );
  }
  await body.write(0, Buffer.from(output));
  return undefined;
}

/** Returns the failure of a body that threw. */
export function failedOf(error: unknown, signal: AbortSignal): MessageInitShape<typeof WorkerFailedSchema> {
  const message = messageOf(error);
  if (signal.aborted) return { kind: WorkerFailure.STOPPED, message };
  if (error instanceof ToolFailure) return { kind: WorkerFailure.EXPECTED, message, noEffects: error.hadNoEffects };
  if (error instanceof InvalidInput) return { kind: WorkerFailure.INVALID_INPUT, message, noEffects: true };
  if (error instanceof InvalidOutput) return { kind: WorkerFailure.INVALID_OUTPUT, message };
  if (error instanceof ChangedAfterApproval) return { kind: WorkerFailure.CHANGED, message, noEffects: true };
  const stack = error instanceof Error ? error.stack : undefined;
  return { kind: WorkerFailure.DEFECT, message: (stack ?? message).slice(0, 16_000) };
}
