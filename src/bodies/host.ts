import { fromJson, type JsonObject, type JsonValue, type MessageInitShape, toJson } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";
import { type FilePart, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import {
  type WorkerAnswerSchema,
  type WorkerAttachment,
  type WorkerBodyRequest,
  type WorkerChildCalls,
  type WorkerCompleted,
  type WorkerEndedCallSchema,
  type WorkerFailed,
  WorkerFailure,
  type WorkerOutput,
  type WorkerReport,
  type WorkerResult,
  type WorkerState,
} from "../../gen/opencode/tool/v1/worker_pb.ts";
import { jsonLength } from "../core/json.ts";
import { ChangedAfterApproval, InvalidInput, InvalidOutput, ToolFailure } from "../tool/errors.ts";
import type { Attachment, ChildResult, ToolContext, ToolResult } from "../tool/tool.ts";
import type { WorkerMessage } from "./worker-connection.ts";

/** A body that runs in another process, from its start or adoption until its end. */
export interface HostedBody extends ReceivedFiles {
  /** The ID by which both sides name it. */
  readonly assignment: string;
  readonly ctx: ToolContext;
  /** Answers by the number of the request; undefined while it is open. Answers to processes that do not return are not retained. */
  readonly answers: Map<number, WorkerMessage | undefined>;
  /** Length of the retained answers, as JSON. */
  answersLength: number;
  hasResult: boolean;
  send(message: WorkerMessage): void;
  resolve(result: ToolResult): void;
  reject(error: unknown): void;
}

/** The differences between tool processes and workers. */
export interface BodyKind<Body extends HostedBody> {
  /** Names the process in errors. */
  readonly owner: string;
  /** True if a body outlives its connection, so that reports, requests and answers may come again. */
  readonly survives: boolean;
  /** Returns text of the process as people may see it. */
  shown(text: string): string;
  takeOutput(body: Body, output: WorkerOutput): Promise<void>;
  takeResult(body: Body, result: WorkerResult): void;
  /** Says why a body may not request something; throws if that ends the call. */
  requestProblem(body: Body, request: WorkerBodyRequest): string | undefined;
  /** Returns the context in which a request is answered. */
  contextOf(body: Body, number: number): ToolContext;
}

/** Time in which the result of a cancelled body counts; the engine waits for it no longer. */
export const graceMs = 4_000;
const maxRequests = 10_000;
const maxOpenRequests = 64;

/** Handles a report. Throws if it ends the call. */
export async function handleReport<Body extends HostedBody>(
  body: Body,
  kind: BodyKind<Body>,
  report: WorkerReport["report"],
): Promise<void> {
  if (body.hasResult) return;
  switch (report.case) {
    case "progress": {
      const { title, metadata } = report.value;
      return body.ctx.metadata({
        ...(title !== undefined && { title: kind.shown(title) }),
        ...(metadata && { metadata }),
      });
    }
    case "output":
      return await kind.takeOutput(body, report.value);
    case "request":
      return void answerBody(body, kind, report.value);
    case "result": {
      const { outcome } = report.value;
      if (outcome.case === "failed" && outcome.value.kind === WorkerFailure.UNSPECIFIED)
        throw new ToolFailure(outcome.value.message);
      return kind.takeResult(body, report.value);
    }
  }
}

/** Answers a request of a body once: the same number again gets the same answer. */
export async function answerBody<Body extends HostedBody>(
  body: Body,
  kind: BodyKind<Body>,
  request: WorkerBodyRequest,
): Promise<void> {
  const { answers, assignment } = body;
  const { number } = request;
  if (answers.has(number)) {
    const answer = answers.get(number);
    if (answer) body.send(answer);
    return;
  }
  const open = [...answers.values()].filter((answer) => answer === undefined).length;
  if (open >= maxOpenRequests || answers.size >= maxRequests) {
    const orAll = kind.survives ? `, or ${maxRequests}` : "";
    return body.reject(new ToolFailure(`${kind.owner} made more than ${maxOpenRequests} requests at a time${orAll}.`));
  }
  answers.set(number, undefined);
  try {
    const problem = kind.requestProblem(body, request);
    const answer =
      problem === undefined
        ? await answerRequest(request, kind.contextOf(body, number), body.parts)
        : { case: "problem" as const, value: problem };
    const message: WorkerMessage = { case: "answer", value: { assignment, number, ...(answer && { answer }) } };
    if (kind.survives) keepAnswer(body, number, message);
    else answers.delete(number);
    body.send(message);
  } catch (error) {
    // A refusal ends the call, and its body learns only that.
    if (!body.hasResult) body.reject(error);
  }
}

/** Retains an answer, which the process may ask for again after it has lost its connection. */
function keepAnswer(body: HostedBody, number: number, message: WorkerMessage): void {
  body.answersLength += jsonLength(message);
  if (body.answersLength > maxAnswersLength)
    throw new ToolFailure(`The worker asked for answers of more than ${maxAnswersLength} characters in one call.`);
  body.answers.set(number, message);
}

const maxAnswersLength = 8 * 1024 * 1024;

/** Asks a process to end a body. */
export function cancelBody({ assignment, ctx: { signal }, send }: HostedBody): void {
  const { reason } = signal;
  const coded = typeof reason === "object" && reason !== null && "reason" in reason ? Number(reason.reason) : 0;
  const known = Object.values(ToolErrorReason).find((each) => each === coded) || ToolErrorReason.CANCELLED;
  const message = reason instanceof Error ? reason.message : "";
  send({ case: "cancel", value: { assignment, reason: known, message, graceMs } });
}

type Answer = NonNullable<MessageInitShape<typeof WorkerAnswerSchema>["answer"]>;

const maxStateBytes = 64 * 1024;

/**
 * Fulfils a request of a body; undefined is the answer without a value. Throws if the request ends the call, as a refused ask
 * does. `parts` gets the files of calls that the body made.
 */
async function answerRequest(
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

/** Files and blobs that a body sent before its result. */
interface ReceivedFiles {
  /** Files of calls that it made, by URL: it may return them. */
  readonly parts: Map<string, FilePart>;
  /** The bytes of its attachments, by number. */
  readonly blobs: Map<number, Uint8Array[]>;
  /** The number of bytes that came of each blob. */
  readonly received: Map<number, number>;
}

const maxAttachmentBytes = 5 * 1024 * 1024;
const maxPieces = 10_000;
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
    const pieces = blobs.get(blob) ?? [];
    if (pieces.length >= maxPieces)
      throw new ToolFailure(`The tool returned an attachment in more than ${maxPieces} pieces.`);
    // A copy, since the bytes are a part of their message, which may be much longer.
    pieces.push(Buffer.from(data));
    return void blobs.set(blob, pieces);
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
