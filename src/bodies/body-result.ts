import { toJson } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";
import type { FilePart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import {
  type WorkerAttachment,
  type WorkerCompleted,
  type WorkerFailed,
  WorkerFailure,
  type WorkerOutput,
  type WorkerResult,
} from "../../gen/opencode/tool/v1/worker_pb.ts";
import { ChangedAfterApproval, InvalidInput, InvalidOutput, ToolFailure } from "../tool/errors.ts";
import type { Attachment, ToolContext, ToolResult } from "../tool/tool.ts";

/** Files and blobs that a body sent before its result. */
export interface ReceivedFiles {
  /** Files of calls that it made, by URL: it may return them. */
  readonly parts: Map<string, FilePart>;
  /** The bytes of its attachments, by number. */
  readonly blobs: Map<number, Uint8Array[]>;
  /** The number of bytes that came of each blob. */
  readonly received: Map<number, number>;
}

const maxAttachmentBytes = 5 * 1024 * 1024;
const maxResultLength = 1024 * 1024;

/** Receives bytes of the output, which is blob 0, or of an attachment. Resolves when there is capacity for more. */
export async function receiveBytes(
  { blobs, received }: ReceivedFiles,
  { blob, offset, data }: WorkerOutput,
  { output, signal }: Pick<ToolContext, "output" | "signal">,
): Promise<void> {
  const before = received.get(blob) ?? 0;
  if (offset !== BigInt(before)) throw new ToolFailure(`The tool's process lost output: ${before} bytes of it came.`);
  received.set(blob, before + data.length);
  if (blob !== 0) {
    if (before + data.length > maxAttachmentBytes)
      throw new ToolFailure(`The tool returned an attachment of more than ${maxAttachmentBytes} bytes.`);
    return void blobs.set(blob, [...(blobs.get(blob) ?? []), data]);
  }
  // Output of an aborted call has no place.
  if (!signal.aborted) await output(data);
}

/** Makes the result of a body. Throws if it failed. */
export function workerResultOf(
  outcome: WorkerResult["outcome"],
  files: Pick<ReceivedFiles, "blobs" | "parts">,
  signal: AbortSignal,
): ToolResult {
  if (outcome.case === "completed") return completedResult(outcome.value, files);
  if (outcome.case === "notEntered") throw new ToolFailure(outcome.value, { hadNoEffects: true });
  throw failureOf(outcome.value, signal);
}

function failureOf(failed: WorkerFailed | undefined, signal: AbortSignal): unknown {
  const { kind, message = "", noEffects: hadNoEffects = false } = failed ?? {};
  switch (kind) {
    case WorkerFailure.EXPECTED:
      return new ToolFailure(message, { hadNoEffects });
    case WorkerFailure.CHANGED:
      return new ChangedAfterApproval(message);
    case WorkerFailure.INVALID_INPUT:
      return Object.assign(new InvalidInput("", []), { message });
    case WorkerFailure.INVALID_OUTPUT:
      return Object.assign(new InvalidOutput("", []), { message });
    case WorkerFailure.STOPPED:
      return signal.aborted ? signal.reason : new ToolFailure(message || "The tool stopped.", { hadNoEffects });
    default:
      return new Error(message);
  }
}

function completedResult(
  { title, output, structured, metadata, attachments, note }: WorkerCompleted,
  files: Pick<ReceivedFiles, "blobs" | "parts">,
): ToolResult {
  if (output !== undefined && output.length > maxResultLength)
    throw new ToolFailure(`The tool returned more than ${maxResultLength} characters at once.`);
  return {
    ...(title !== undefined && { title }),
    ...(output !== undefined && { output }),
    ...(structured && { structured: toJson(ValueSchema, structured) }),
    ...(metadata && { metadata }),
    ...(attachments.length > 0 && { attachments: attachments.map((attachment) => attachmentOf(attachment, files)) }),
    ...(note !== "" && { note }),
  };
}

function attachmentOf(
  { blob, mime, filename, part }: WorkerAttachment,
  { blobs, parts }: Pick<ReceivedFiles, "blobs" | "parts">,
): Attachment | FilePart {
  if (part !== undefined) {
    const known = parts.get(part.url);
    if (known === undefined) throw new ToolFailure("The tool returned a file that no call of it returned.");
    return known;
  }
  return { mime, data: Buffer.concat(blobs.get(blob) ?? []), ...(filename !== "" && { filename }) };
}
