import type { MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type StreamToolsRequest,
  type StreamToolsResponseSchema,
  ToolService,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { ByteBudget } from "../http/byte-budget.ts";
import type { EdgeContext } from "./edge-context.ts";
import type { Failures } from "./failures.ts";
import { createMerger, type Merger } from "./merge.ts";
import { clientLeft, overloaded, RequestFailure, statusNumbers } from "./request-failure.ts";
import { nameOfRpc, type ServiceFunctions } from "./rpc.ts";
import { StreamedCall, type StreamToolsDomain } from "./streamed-call.ts";

/** Maximum size of one request message. */
export const streamMessageBytes = 262_144;
/** Number of calls that may be open on a stream. */
const maxOpenCalls = 1_000;

type StreamToolsMessage = MessageInitShape<typeof StreamToolsResponseSchema>;

/** One stream, and the calls that are open on it. */
interface ToolStream {
  domain: StreamToolsDomain;
  failures: Failures;
  budget: Pick<ByteBudget, "reserve" | "release">;
  context: EdgeContext;
  calls: Map<string, StreamedCall>;
  merger: Merger<StreamToolsMessage>;
}

/** Creates StreamTools: each call is a source of messages, and so is the reader of requests, which reports what is out of order. */
export function createStreamTools(
  domain: StreamToolsDomain,
  failures: Failures,
  budget: ToolStream["budget"],
): ServiceFunctions<typeof ToolService>["streamTools"] {
  return async function* streamTools(requests, given) {
    const leaving = new AbortController();
    const context = { ...given, signal: AbortSignal.any([given.signal, leaving.signal]) };
    const merger = createMerger<StreamToolsMessage>();
    const stream: ToolStream = { domain, failures, budget, context, calls: new Map(), merger };
    merger.add(readRequests(stream, requests));
    let isOver = false;
    try {
      yield* merger.items();
      isOver = true;
    } finally {
      // A stream that fails is cut off: its calls end as if the client had left.
      if (!isOver) leaving.abort(clientLeft());
      // The reader of requests ends only after this.
      void merger.close();
    }
  };
}

/** Reads the requests of a stream; yields an error for each that is out of order. */
async function* readRequests(
  stream: ToolStream,
  requests: AsyncIterable<StreamToolsRequest>,
): AsyncGenerator<StreamToolsMessage, void> {
  for await (const request of requests) {
    const error = take(stream, request);
    if (error !== undefined) yield errorOf(stream, request.streamId, error);
  }
  for (const call of stream.calls.values()) if (call.isOpen) call.drop();
}

/** Takes one request; returns why it is out of order, if it is. */
function take(stream: ToolStream, { streamId, message }: StreamToolsRequest): RequestFailure | undefined {
  const { calls, merger } = stream;
  const call = calls.get(streamId);
  switch (message.case) {
    case "open": {
      if (call !== undefined) return outOfOrder(streamId, "is open already; use a stream_id once");
      const isFull = calls.size >= maxOpenCalls;
      const opened = new StreamedCall(message.value, stream);
      if (!isFull) calls.set(streamId, opened);
      merger.add(messagesOf(stream, streamId, opened, isFull));
      return undefined;
    }
    case "credit":
      call?.addCredit(message.value.bytes);
      return undefined;
    case "cancel":
      if (call?.isOpen) call.drop();
      else if (call !== undefined) merger.add(cancelled(stream, streamId, call.cancel(message.value.message)));
      return undefined;
    default:
      if (call === undefined) return outOfOrder(streamId, "is not open; send open first");
      if (call.hasFailed) return undefined;
      if (!call.isOpen) return outOfOrder(streamId, "was executed already; open another stream_id");
  }
  if (message.case === "inputDelta") call.append(message.value.text);
  if (message.case === "execute") call.execute();
  if (message.case === "resume") call.resume(message.value.afterSeq);
  return undefined;
}

/** Yields the messages of a call: its events, the error that ends it, and its end. */
async function* messagesOf(
  stream: ToolStream,
  streamId: string,
  call: StreamedCall,
  isFull: boolean,
): AsyncGenerator<StreamToolsMessage, void> {
  try {
    if (isFull) throw overloaded("stream_calls", `the stream has ${maxOpenCalls} open calls`);
    for await (const { event, windowBytes } of call.events())
      yield { streamId, message: { case: "event", value: event }, windowBytes };
  } catch (error) {
    stream.context.signal.throwIfAborted();
    yield errorOf(stream, streamId, error);
  }
  if (!isFull) stream.calls.delete(streamId);
  yield { streamId, message: { case: "ended", value: {} } };
}

/** Waits for a cancel; its end is an event of the call, and a failure an error. */
async function* cancelled(
  stream: ToolStream,
  streamId: string,
  cancel: Promise<unknown>,
): AsyncGenerator<StreamToolsMessage, void> {
  try {
    await cancel;
  } catch (error) {
    yield errorOf(stream, streamId, error);
  }
}

function errorOf({ failures, context }: ToolStream, streamId: string, error: unknown): StreamToolsMessage {
  const failure = failures.failureOf(error, nameOfRpc(ToolService.method.streamTools), context.signal);
  const { status, message, reason, metadata } = failure;
  const value = { code: statusNumbers[status], message, reason, metadata };
  return { streamId, message: { case: "error", value } };
}

function outOfOrder(streamId: string, fact: string): RequestFailure {
  return new RequestFailure("invalid_argument", `stream_id ${JSON.stringify(streamId)} ${fact}`, {
    reason: ErrorReason.INVALID_MESSAGE,
    metadata: { field: "stream_id" },
  });
}
