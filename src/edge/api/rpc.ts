import {
  type DescMessage,
  type DescMethod,
  type DescMethodBiDiStreaming,
  type DescMethodClientStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  type DescService,
  isMessage,
  type Message,
  type MessageInitShape,
  type MessageShape,
} from "@bufbuild/protobuf";
import { violationsToProto } from "@bufbuild/protovalidate";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { WorkRequestSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { EnforcementCheck } from "../../agents/connect/connectors.ts";
import { failAlone } from "../../bodies/fail-alone.ts";
import { createContractValidator, createNumberCheck } from "../../core/contract-validator.ts";
import type { Peer } from "../../core/peer-uid.ts";
import type { Principal, Role } from "../../core/principal.ts";
import type { TraceContext } from "../../tool/tool.ts";
import { invalidField, notServed, RequestFailure } from "./request-failure.ts";

/** Functions of a service, one for each rpc: from a request and its context to a response or a stream of responses. */
export type ServiceFunctions<Service extends DescService> = {
  [Name in keyof Service["method"]]: RpcFunction<Service["method"][Name]>;
};

type RpcFunction<Method> =
  Method extends DescMethodUnary<infer Input, infer Output>
    ? (request: MessageShape<Input>, context: EdgeContext) => Awaitable<MessageInitShape<Output>>
    : Method extends DescMethodServerStreaming<infer Input, infer Output>
      ? (request: MessageShape<Input>, context: EdgeContext) => AsyncIterable<MessageInitShape<Output>>
      : Method extends DescMethodClientStreaming<infer Input, infer Output>
        ? (requests: AsyncIterable<MessageShape<Input>>, context: EdgeContext) => Awaitable<MessageInitShape<Output>>
        : Method extends DescMethodBiDiStreaming<infer Input, infer Output>
          ? (
              requests: AsyncIterable<MessageShape<Input>>,
              context: EdgeContext,
            ) => AsyncIterable<MessageInitShape<Output>>
          : never;

type Awaitable<T> = T | Promise<T>;

/** An rpc and its function, for doors that serve all rpcs alike. */
export type Rpc = { method: DescMethod } & RpcAccess &
  (
    | { kind: "unary"; run: AnyFunction<Message, Awaitable<AnyMessage>> }
    | { kind: "server_streaming"; run: AnyFunction<Message, AsyncIterable<AnyMessage>> }
    | { kind: "client_streaming"; run: AnyFunction<AsyncIterable<Message>, Awaitable<AnyMessage>> }
    | { kind: "bidi_streaming"; run: AnyFunction<AsyncIterable<Message>, AsyncIterable<AnyMessage>> }
  );

/** Access to an rpc. */
export interface RpcAccess {
  /** True if the rpc needs no token. Its requests are small, and its response is the same for every client. */
  isPublic: boolean;
  /** Maximum size of one request message of a stream in both directions; absent: that of requests. */
  messageBytes?: number;
}

/** Rpc that takes one request message. */
export type SingleRequestRpc = Extract<Rpc, { kind: "unary" | "server_streaming" }>;

/** Rpc that streams in both directions. */
export type BidiRpc = Extract<Rpc, { kind: "bidi_streaming" }>;

type AnyMessage = MessageInitShape<DescMessage>;
type AnyFunction<Request, Response> = (request: Request, context: EdgeContext) => Response;

/** Access to the rpcs of a service; they are public together, and each stream has its own maximum size of a message. */
interface RpcsAccess<Service extends DescService> {
  isPublic?: boolean;
  messageBytes?: { readonly [Name in keyof Service["method"]]?: number };
}

/** Lists the rpcs of a service with their functions; one without a function fails as unimplemented. */
export function rpcsOf<Service extends DescService>(
  service: Service,
  functions: ServiceFunctions<Service>,
  { isPublic = false, messageBytes = {} }: RpcsAccess<Service> = {},
): Rpc[] {
  const maxBytes: Readonly<Record<string, number | undefined>> = messageBytes;
  // The type of each function follows from the method's descriptor, which TypeScript cannot relate by name here.
  const byName = functions as unknown as Readonly<Record<string, AnyFunction<never, never> | undefined>>;
  return service.methods.map((method): Rpc => {
    const run = byName[method.localName] ?? unimplemented(nameOfRpc(method));
    const access = { isPublic, messageBytes: maxBytes[method.localName] };
    return { kind: method.methodKind, method, ...access, run } as unknown as Rpc;
  });
}

/** Returns the name of an rpc in errors and logs, such as `opencode.tool.v1.ToolService/CallTool`. */
export function nameOfRpc({ parent, name }: { parent: DescService; name: string }): string {
  return `${parent.typeName}/${name}`;
}

function unimplemented(name: string): () => never {
  return () => {
    throw notServed("unimplemented", `${name} is not implemented`);
  };
}

/** Violations that a refusal names; gRPC has 64 KiB for all trailers. */
const maxViolations = 16;

/** Refuses a request that breaks a validation rule of the contract; returns the message to take, which may be another one. */
export type CheckMessage = (schema: DescMessage, message: Message) => Message;

/** Creates the check. */
export function createMessageCheck(): CheckMessage {
  const validator = createContractValidator();
  const findUnwritable = createNumberCheck();
  const problemOf = (schema: DescMessage, message: Message): RequestFailure | undefined => {
    const path = findUnwritable(schema, message);
    if (path !== undefined) {
      const fact = `${path} is a number that JSON cannot hold, such as 1e400; send a smaller one, or a string`;
      return invalidField(path, fact);
    }
    const { error, violations = [] } = validator.validate(schema, message);
    if (error === undefined) return undefined;
    const [value, desc] = violationsToProto(violations.slice(0, maxViolations));
    const [first] = value.violations;
    const field = (first?.field?.elements ?? []).map(({ fieldName }) => fieldName).join(".");
    return new RequestFailure("invalid_argument", error.message, {
      reason: ErrorReason.INVALID_MESSAGE,
      metadata: field === "" ? {} : { field },
      details: [{ desc, value }],
    });
  };
  return (schema, message) => {
    const problem = problemOf(schema, message);
    if (problem === undefined) return message;
    const instead = isMessage(message, WorkRequestSchema) ? failAlone(message, problem) : undefined;
    if (instead === undefined) throw problem;
    return instead;
  };
}

/** Domain that finds out who sends a request. */
export interface SenderDomain {
  enforcement: EnforcementCheck;
}

/** Returns the principal of a call, with its user where answers need another one. */
export async function callerOf({ enforcement }: SenderDomain, { principal, peer }: EdgeContext): Promise<Principal> {
  return enforcement.requiresOtherUser ? enforcement.identify(principal, await peer()) : principal;
}

/** Returns the principal of a request that only approvers send, and remembers its user. */
export async function approverOf({ enforcement }: SenderDomain, { principal, peer }: EdgeContext): Promise<Principal> {
  return enforcement.identify(principal, await peer());
}

/** Context of a request as the services see it, whichever door the request came through. */
export interface EdgeContext {
  /** Authenticated sender of the request. */
  readonly principal: Principal;
  /** Roles that the request may use: those of its token. */
  readonly roles: ReadonlySet<Role>;
  /** Aborted when the client leaves, its deadline passes, or the replica drains; `reason` is the error to report. */
  readonly signal: AbortSignal;
  /** Time until which the client waits, in ms since the epoch; undefined if it set no deadline. */
  readonly deadline: number | undefined;
  /** Trace of the caller, if it sent one. */
  readonly trace: TraceContext | undefined;
  /** Headers of the request. */
  readonly headers: ListedHeaders;
  /** Headers and trailers that the rpc adds to its response, before its first message. */
  readonly response: { readonly headers: Headers; readonly trailers: Headers };
  /** Bounds on the request. */
  readonly limits: EdgeLimits;
  /** Maximum silence of a watch, in ms, where the client set it. */
  readonly heartbeatMs?: number | undefined;
  /** Returns the other end of the connection, with the user of the operating system that sent the request. */
  readonly peer: () => Promise<Peer>;
}

/** Creates the context of a request; its deadline and trace follow from what the client sent. */
export function createEdgeContext({
  principal,
  signal,
  timeoutMs,
  headers,
  response,
  limits,
  peer,
}: Pick<EdgeContext, "principal" | "signal" | "headers" | "response" | "limits" | "peer"> & {
  /** Time that the client waits; undefined if it set none. */
  timeoutMs?: number | undefined;
}): EdgeContext {
  const deadline = timeoutMs === undefined ? undefined : Date.now() + timeoutMs;
  const trace = traceContextOf(headers);
  return { principal, roles: principal.roles, signal, deadline, trace, headers, response, limits, peer };
}

/** Headers of a request, by name in lower case. */
export interface RequestHeaders {
  get(name: string): string | null;
}

/** Headers of a request that can be listed. */
export interface ListedHeaders extends RequestHeaders {
  entries(): Iterable<[name: string, value: string]>;
}

/** Bounds on a request, the same at every door. */
export interface EdgeLimits {
  /** Maximum size of a request. */
  readonly requestBytes: number;
  /** Maximum size of a request to an rpc that needs no token. */
  readonly publicRequestBytes: number;
  /** Time in which the body of a request must arrive. */
  readonly bodyMs: number;
  /** Maximum time that a client may set as its deadline. */
  readonly maxDeadlineMs: number;
  /** Number of entries on a page of a list, where the request sets none. */
  readonly defaultPageSize: number;
}

/** Creates the bounds from the configured ones. */
export function createEdgeLimits({
  requestBytes,
  publicRequestBytes,
  bodyMs,
}: Pick<EdgeLimits, "requestBytes" | "publicRequestBytes" | "bodyMs">): EdgeLimits {
  return { requestBytes, publicRequestBytes, bodyMs, maxDeadlineMs: 86_400_000, defaultPageSize: 100 };
}

/** Headers and trailers that an rpc adds to its response; created when they are first used, since few rpcs have any. */
export class ResponseMetadata {
  #headers: Headers | undefined;
  #trailers: Headers | undefined;

  get headers(): Headers {
    this.#headers ??= new Headers();
    return this.#headers;
  }

  get trailers(): Headers {
    this.#trailers ??= new Headers();
    return this.#trailers;
  }

  /** Returns the headers in the form of Node, the trailers with a prefix of their own if it is given. */
  headerFields(): Record<string, string> {
    return this.#headers === undefined ? {} : Object.fromEntries(this.#headers);
  }

  /** Returns the trailers in the form of Node; each name begins with `prefix`. */
  trailerFields(prefix = ""): Record<string, string> {
    if (this.#trailers === undefined) return {};
    return Object.fromEntries([...this.#trailers].map(([name, value]) => [`${prefix}${name}`, value]));
  }
}

/** Reads the caller's W3C trace context from the headers; undefined if there is none or it is malformed. */
function traceContextOf(headers: RequestHeaders): TraceContext | undefined {
  const traceparent = headers.get("traceparent");
  if (traceparent === null || !traceparentPattern.test(traceparent)) return undefined;
  const tracestate = headers.get("tracestate") ?? "";
  return { traceparent, ...(/^[ -~]{1,512}$/.test(tracestate) && { tracestate }) };
}

const traceparentPattern = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;
