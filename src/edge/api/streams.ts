import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import {
  type StreamToolsRequest,
  type StreamToolsResponseSchema,
  ToolService,
  type Watch,
  WatchEndSchema,
  type WatchManyResponseSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { BudgetShare } from "../http/socket-limits.ts";
import type { Failures } from "./failures.ts";
import { clientLeft, invalidField, overloaded, type RequestFailure, statusNumbers } from "./request-failure.ts";
import { type EdgeContext, nameOfRpc, type ServiceFunctions } from "./rpc.ts";
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
  budget: BudgetShare;
  context: EdgeContext;
  calls: Map<string, StreamedCall>;
  merger: Merger<StreamToolsMessage>;
}

/** Creates StreamTools: each call is a source of messages, and so is the reader of requests, which reports what is out of order. */
export function createStreamTools(
  domain: StreamToolsDomain,
  failures: Failures,
  shareOf: (principalId: string) => BudgetShare,
): ServiceFunctions<typeof ToolService>["streamTools"] {
  return async function* streamTools(requests, given) {
    const leaving = new AbortController();
    const context = { ...given, signal: AbortSignal.any([given.signal, leaving.signal]) };
    const merger = createMerger<StreamToolsMessage>();
    const budget = shareOf(context.principal.id);
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
    const { streamId } = request;
    const error = take(stream, request);
    if (error === undefined) continue;
    // The next request is read once the client has taken the refusal of this one.
    yield errorOf(stream, streamId, error);
    if (error.reason === ErrorReason.OVERLOADED) yield endOf(streamId);
  }
  for (const call of stream.calls.values()) if (call.isOpen) call.drop();
}

/** Takes one request; returns why it is refused, if it is. */
function take(stream: ToolStream, { streamId, message }: StreamToolsRequest): RequestFailure | undefined {
  const { calls, merger } = stream;
  const call = calls.get(streamId);
  switch (message.case) {
    case "open": {
      if (call !== undefined) return outOfOrder(streamId, "is open already; use a stream_id once");
      if (calls.size >= maxOpenCalls) return overloaded("stream_calls", `the stream has ${maxOpenCalls} open calls`);
      const opened = new StreamedCall(message.value, stream);
      calls.set(streamId, opened);
      merger.add(messagesOf(stream, streamId, opened));
      return undefined;
    }
    case "credit":
      call?.addCredit(message.value.bytes);
      return undefined;
    case "cancel":
      if (call?.isOpen) call.drop();
      else if (call?.isCancelling === false) merger.add(cancelled(stream, streamId, call, message.value.message));
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
): AsyncGenerator<StreamToolsMessage, void> {
  try {
    for await (const { event, windowBytes } of call.events())
      yield { streamId, message: { case: "event", value: event }, windowBytes };
  } catch (error) {
    stream.context.signal.throwIfAborted();
    yield errorOf(stream, streamId, error);
  }
  yield endOf(streamId);
  // A call whose end the client has not taken is in memory, so it counts as open.
  stream.calls.delete(streamId);
}

const endOf = (streamId: string): StreamToolsMessage => ({ streamId, message: { case: "ended", value: {} } });

/** Cancels a call; its end is an event of the call, and a failure an error, after which the client may cancel again. */
async function* cancelled(
  stream: ToolStream,
  streamId: string,
  call: StreamedCall,
  message: string,
): AsyncGenerator<StreamToolsMessage, void> {
  try {
    await call.cancel(message);
  } catch (error) {
    yield errorOf(stream, streamId, error);
    call.isCancelling = false;
  }
}

function errorOf({ failures, context }: ToolStream, streamId: string, error: unknown): StreamToolsMessage {
  const failure = failures.failureOf(error, nameOfRpc(ToolService.method.streamTools), context.signal);
  const { status, message, reason, metadata } = failure;
  const value = { code: statusNumbers[status], message, reason, metadata };
  return { streamId, message: { case: "error", value } };
}

function outOfOrder(streamId: string, fact: string): RequestFailure {
  return invalidField("stream_id", `stream_id ${JSON.stringify(streamId)} ${fact}`);
}

/** Sources whose items are merged; more may be added while the items are read. */
interface Merger<T> {
  add(source: AsyncIterator<T, void>): void;
  /** Yields the items in the order in which they arrive, until all sources have ended or one fails. */
  items(): AsyncGenerator<T, void>;
  /** Ends the sources that have not ended. */
  close(): Promise<void>;
}

/**
 * Creates a merger without sources. A source is asked for its next item when its last one was taken, so that a busy source
 * delays no other.
 */
function createMerger<T>(): Merger<T> {
  const settled: { source: AsyncIterator<T, void>; next: Promise<IteratorResult<T, void>> }[] = [];
  const open = new Set<AsyncIterator<T, void>>();
  let wake = () => {};
  const request = (source: AsyncIterator<T, void>) => {
    const next = source.next();
    const settle = () => {
      settled.push({ source, next });
      wake();
    };
    next.then(settle, settle);
  };
  return {
    add(source) {
      open.add(source);
      request(source);
    },
    async *items() {
      while (open.size > 0) {
        const first = settled.shift();
        if (first === undefined) {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
          continue;
        }
        const { done, value } = await first.next;
        if (done) {
          open.delete(first.source);
          continue;
        }
        yield value;
        request(first.source);
      }
    },
    async close() {
      await Promise.allSettled([...open].map((source) => source.return?.()));
    },
  };
}

/** Merges sources in the order in which their items arrive, until all have ended or one fails. The caller ends the sources. */
export function merge<T>(sources: readonly AsyncIterator<T, void>[]): AsyncGenerator<T, void> {
  const merger = createMerger<T>();
  for (const source of sources) merger.add(source);
  return merger.items();
}

type Watches = Pick<ServiceFunctions<typeof ToolService>, "watchSession"> &
  Pick<ServiceFunctions<typeof PermissionService>, "watchPermissions">;

/** Creates WatchMany from the rpcs of its watches: it merges their streams. */
export function createWatchMany(
  { watchSession, watchPermissions }: Watches,
  { failureOf }: Failures,
): ServiceFunctions<typeof ToolService>["watchMany"] {
  async function* framesOf({ watch }: Watch, context: EdgeContext): AsyncGenerator<Frame> {
    if (watch.case === "session")
      for await (const value of watchSession(watch.value, context)) yield { case: "session", value };
    if (watch.case === "permissions")
      for await (const value of watchPermissions(watch.value, context)) yield { case: "permissions", value };
  }

  async function* messagesOf(watch: Watch, context: EdgeContext): AsyncGenerator<WatchManyMessage, void> {
    const { key } = watch;
    try {
      for await (const frame of framesOf(watch, context)) yield { key, frame };
    } catch (error) {
      // An abort of the request ends the whole stream, not this watch.
      context.signal.throwIfAborted();
      yield { key, frame: { case: "end", value: watchEnd(failureOf(error, nameOfRpc(ToolService.method.watchMany))) } };
    }
  }

  return async function* watchMany({ watches, heartbeatMs }, context) {
    const leaving = new AbortController();
    const signal = AbortSignal.any([context.signal, leaving.signal]);
    const own = { ...context, signal, heartbeatMs: heartbeatMs || undefined };
    const sources = watches.map((watch) => messagesOf(watch, own));
    try {
      yield* merge(sources);
    } finally {
      // The signal ends a watch that waits for events; the return ends one whose message was not taken.
      leaving.abort();
      await Promise.allSettled(sources.map((source) => source.return()));
    }
  };
}

type WatchManyMessage = MessageInitShape<typeof WatchManyResponseSchema>;
type Frame = NonNullable<WatchManyMessage["frame"]>;

function watchEnd({ status, message, reason, metadata }: RequestFailure) {
  return create(WatchEndSchema, { code: statusNumbers[status], message, reason, metadata });
}
