import type {
  DescMessage,
  DescMethod,
  DescMethodServerStreaming,
  DescMethodUnary,
  DescService,
  Message,
  MessageInitShape,
  MessageShape,
} from "@bufbuild/protobuf";
import type { EdgeContext } from "./edge-context.ts";
import { RequestFailure } from "./request-failure.ts";

/** Functions of a service, one for each rpc: from a request and its context to a response or a stream of responses. */
export type ServiceFunctions<Service extends DescService> = {
  [Name in keyof Service["method"]]: RpcFunction<Service["method"][Name]>;
};

type RpcFunction<Method> =
  Method extends DescMethodUnary<infer Input, infer Output>
    ? (
        request: MessageShape<Input>,
        context: EdgeContext,
      ) => Promise<MessageInitShape<Output>> | MessageInitShape<Output>
    : Method extends DescMethodServerStreaming<infer Input, infer Output>
      ? (request: MessageShape<Input>, context: EdgeContext) => AsyncIterable<MessageInitShape<Output>>
      : never;

/** An rpc and its function, for doors that serve all rpcs alike. */
export type Rpc =
  | { kind: "unary"; method: DescMethod; run: AnyFunction<Promise<AnyMessage> | AnyMessage> }
  | { kind: "server_streaming"; method: DescMethod; run: AnyFunction<AsyncIterable<AnyMessage>> };

type AnyMessage = MessageInitShape<DescMessage>;
type AnyFunction<Result> = (request: Message, context: EdgeContext) => Result;

/** Lists the rpcs of a service with their functions; one without a function fails as unimplemented. */
export function rpcsOf<Service extends DescService>(service: Service, functions: ServiceFunctions<Service>): Rpc[] {
  // The type of each function follows from the method's descriptor, which TypeScript cannot relate by name here.
  const byName = functions as unknown as Readonly<Record<string, AnyFunction<never> | undefined>>;
  return service.methods.map((method): Rpc => {
    const run = byName[method.localName] ?? unimplemented(nameOfRpc(method));
    if (method.methodKind === "unary") return { kind: "unary", method, run };
    if (method.methodKind === "server_streaming") return { kind: "server_streaming", method, run };
    throw new Error(`${nameOfRpc(method)} takes a stream, which no door serves`);
  });
}

/** Returns the name of an rpc in errors and logs, such as `opencode.tool.v1.ToolService/CallTool`. */
export function nameOfRpc({ parent, name }: { parent: DescService; name: string }): string {
  return `${parent.typeName}/${name}`;
}

function unimplemented(name: string): () => never {
  return () => {
    throw new RequestFailure("unimplemented", `${name} is not implemented`);
  };
}
