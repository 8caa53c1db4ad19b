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
import type { Principal } from "../../core/principal.ts";
import type { EdgeContext } from "./edge-context.ts";
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
