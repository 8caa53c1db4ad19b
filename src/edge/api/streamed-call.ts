import { create, fromJson, type JsonObject, type JsonValue, toBinary } from "@bufbuild/protobuf";
import { StructSchema } from "@bufbuild/protobuf/wkt";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { ToolPartSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import {
  type ExecuteToolResponse,
  ExecuteToolResponseSchema,
  type StreamToolsOpen,
  StreamToolsOpenSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Accepted } from "../../call/accept.ts";
import { checkMetadata } from "../../call/check-size.ts";
import type { EncodedMessages } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { findUnwritable } from "../../core/contract-validator.ts";
import { RequestError } from "../../core/request-error.ts";
import type { BudgetShare } from "../http/socket-limits.ts";
import { callerOf, type EdgeContext, type SenderDomain } from "./rpc.ts";
import { followCall, type ToolServiceDomain } from "./tool-service.ts";

/** Domain that StreamTools works on. */
export interface StreamToolsDomain extends Pick<ToolServiceDomain, "calls" | "store" | "about">, SenderDomain {
  encoded: EncodedMessages;
}

/** Order of the client for a call whose input is complete. */
type Order =
  | { type: "execute" }
  | { type: "resume"; afterSeq: bigint }
  | { type: "drop" }
  | { type: "fail"; error: unknown };

/** An event of a streamed call. */
interface StreamedEvent {
  event: ExecuteToolResponse;
  /** Bytes that it takes from the window. */
  windowBytes: number;
}

/** Bytes of events that a call is sent before the first credit, and the most that credits add up to. */
const startWindowBytes = 262_144;
const maxWindowBytes = 16_777_216;
/** Bytes that are counted for an event in addition to its text or data. */
const eventBytes = 256;

/** One call of a stream: its input as it arrives, then its events, within its window. */
export class StreamedCall {
  private readonly opened: StreamToolsOpen;
  private readonly domain: StreamToolsDomain;
  private readonly budget: BudgetShare;
  private readonly context: EdgeContext;
  private order: Order | undefined;
  private input = "";
  private inputBytes = 0;
  private shownLength = 0;
  private windowBytes = startWindowBytes;
  private wake: () => void = () => undefined;
  private readonly accepted = Promise.withResolvers<CallRef | undefined>();
  /** Bytes of `opened` in the budget, until the call ends. */
  private openedBytes = 0;
  /** True from a cancel on, so that another one is ignored; false again after one that failed. */
  isCancelling = false;

  /** Opens a call of a stream. Its metadata is in memory from now on, so its size is checked now. */
  constructor(
    opened: StreamToolsOpen,
    { domain, budget, context }: { domain: StreamToolsDomain; budget: BudgetShare; context: EdgeContext },
  ) {
    this.domain = domain;
    this.budget = budget;
    this.context = context;
    try {
      checkMetadata(opened.metadata);
      const bytes = toBinary(StreamToolsOpenSchema, opened).length;
      budget.reserve(bytes);
      this.openedBytes = bytes;
    } catch (error) {
      this.opened = create(StreamToolsOpenSchema);
      this.decide({ type: "fail", error });
      return;
    }
    this.opened = opened;
  }

  /** True while the call takes input. */
  get isOpen(): boolean {
    return this.order === undefined;
  }

  /** True if its input failed; the error and the end of the call are on their way. */
  get hasFailed(): boolean {
    return this.order?.type === "fail";
  }

  /** Appends to the input. */
  append(text: string): void {
    const bytes = Buffer.byteLength(text);
    const maxBytes = Number(this.domain.about.limits.inputBytes);
    try {
      if (this.inputBytes + bytes > maxBytes) throw inputTooLarge(maxBytes);
      this.budget.reserve(bytes);
      this.inputBytes += bytes;
      this.input += text;
      this.wake();
    } catch (error) {
      this.decide({ type: "fail", error });
    }
  }

  /** Makes the call with its input. */
  execute(): void {
    this.decide({ type: "execute" });
  }

  /** Follows the existing call of the same ids. */
  resume(afterSeq: bigint): void {
    this.decide({ type: "resume", afterSeq });
  }

  /** Ends a call that was not executed. */
  drop(): void {
    if (this.isOpen) this.decide({ type: "drop" });
  }

  /** Cancels a call that was executed; resolves when that is recorded. */
  async cancel(message: string): Promise<void> {
    this.isCancelling = true;
    const ref = await this.accepted.promise;
    if (ref) await this.domain.calls.cancel(this.context.principal, ref.sessionId, ref.callId, message);
  }

  /** Adds to the window. */
  addCredit(bytes: number): void {
    this.windowBytes = Math.min(this.windowBytes + bytes, maxWindowBytes);
    this.wake();
  }

  private decide(order: Order): void {
    this.order = order;
    this.wake();
  }

  /** Yields the events of the call: its input while it arrives, then those of the call itself. */
  async *events(): AsyncGenerator<StreamedEvent, void> {
    const { signal } = this.context;
    const onAbort = () => this.wake();
    signal.addEventListener("abort", onAbort);
    try {
      const order = yield* this.previews();
      if (order.type === "drop") return;
      if (order.type === "fail") throw order.error;
      const call = await this.find(order);
      this.accepted.resolve(call.record.ref);
      const afterSeq = order.type === "resume" ? order.afterSeq : 0n;
      const { onDisconnect } = this.opened;
      for await (const event of followCall(this.domain, call, { onDisconnect, afterSeq }, this.context))
        yield await this.withinWindow(event, this.sizeOf(event));
    } finally {
      signal.removeEventListener("abort", onAbort);
      this.accepted.resolve(undefined);
      this.releaseInput();
      this.budget.release(this.openedBytes);
      this.drop();
    }
  }

  /** Yields the input as it arrives, and returns what to do with it. */
  private async *previews(): AsyncGenerator<StreamedEvent, Order> {
    for (;;) {
      this.context.signal.throwIfAborted();
      if (this.order !== undefined) return this.order;
      const newLength = this.input.length - this.shownLength;
      if (newLength > 0 && newLength >= this.shownLength / 8 && this.windowBytes > 0) {
        // What has arrived together is shown together, and not at all if the input is complete.
        await new Promise(setImmediate);
        if (this.order === undefined) yield await this.withinWindow(this.preview(), this.inputBytes + eventBytes);
      } else await this.news();
    }
  }

  private preview(): ExecuteToolResponse {
    const { sessionId, messageId, callId, tool, agent } = this.opened;
    this.shownLength = this.input.length;
    const state = { case: "pending" as const, value: { status: "pending", raw: this.input } };
    const part = create(ToolPartSchema, { sessionId, messageId, callId, tool, agent, type: "tool", state });
    const event = create(SessionEventSchema, { sessionId, time: Date.now(), event: { case: "part", value: part } });
    return create(ExecuteToolResponseSchema, { event });
  }

  /** Makes the call, or finds the existing one. */
  private async find(order: Order): Promise<Pick<Accepted, "record">> {
    const { domain, context, opened } = this;
    const principal = await callerOf(domain, context);
    if (order.type === "resume") return { record: await domain.calls.find(principal, opened) };
    const input = parseInput(this.input);
    this.releaseInput();
    return await domain.calls.open(principal, { ...opened, input }, context.trace);
  }

  /** Waits until the window has space, and takes an event's size from it. */
  private async withinWindow(event: ExecuteToolResponse, windowBytes: number): Promise<StreamedEvent> {
    while (this.windowBytes <= 0) {
      this.context.signal.throwIfAborted();
      await this.news();
    }
    this.windowBytes -= windowBytes;
    return { event, windowBytes };
  }

  private sizeOf({ event }: ExecuteToolResponse): number {
    if (event === undefined) return eventBytes;
    if (event.event.case === "output") return event.event.value.data.length + eventBytes;
    return (this.domain.encoded.bytesOf(event) ?? toBinary(SessionEventSchema, event)).length;
  }

  private news(): Promise<void> {
    return new Promise((resolve) => {
      this.wake = resolve;
    });
  }

  private releaseInput(): void {
    this.budget.release(this.inputBytes);
    this.inputBytes = 0;
    this.input = "";
  }
}

/** Parses an input; refuses text that is no JSON object. */
function parseInput(text: string): JsonObject {
  let value: JsonValue;
  try {
    value = text === "" ? {} : JSON.parse(text);
    // Refuses what is no object, and nesting that a message cannot hold.
    fromJson(StructSchema, value);
  } catch (cause) {
    const fact = cause instanceof Error ? cause.message : String(cause);
    throw invalidInput(`the input is no JSON object: ${fact}`, cause);
  }
  const path = findUnwritable(value);
  if (path !== undefined) throw invalidInput(`the input is no JSON object: ${path} is a number that JSON cannot hold`);
  return value as JsonObject;
}

function inputTooLarge(maxBytes: number): RequestError {
  return invalidInput(
    `the input is over the limit of ${maxBytes} bytes (limits.input_bytes of GetServerInfo); send less`,
  );
}

function invalidInput(message: string, cause?: unknown): RequestError {
  return new RequestError(ErrorReason.INVALID_MESSAGE, message, { field: "input" }, { cause });
}
