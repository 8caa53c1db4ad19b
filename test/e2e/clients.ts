import type { DescService } from "@bufbuild/protobuf";
import { type Client, ConnectError, createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import * as node from "@connectrpc/connect-node";
import * as web from "@connectrpc/connect-web";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { createGrpcJsTransport } from "./grpc-js.ts";
import type { Principal, Service } from "./service.ts";

/** Opens a connection that carries a token. */
export type Opens = (baseUrl: string, token: string) => Transport;

/** Every kind of client that the service promises to answer. */
export const kinds: Readonly<Record<string, Opens>> = {
  "grpc-js, from the .proto files": createGrpcJsTransport,
  gRPC: (baseUrl, token) => node.createGrpcTransport({ baseUrl, interceptors: [bearer(token)] }),
  "gRPC-Web over HTTP/2": (baseUrl, token) =>
    node.createGrpcWebTransport({ baseUrl, httpVersion: "2", interceptors: [bearer(token)] }),
  "gRPC-Web as a browser sends it": (baseUrl, token) =>
    web.createGrpcWebTransport({ baseUrl, interceptors: [bearer(token)] }),
  "Connect as a browser sends it": (baseUrl, token) =>
    web.createConnectTransport({ baseUrl, interceptors: [bearer(token)] }),
  "Connect, JSON over HTTP/1.1": (baseUrl, token) =>
    node.createConnectTransport({ baseUrl, httpVersion: "1.1", useBinaryFormat: false, interceptors: [bearer(token)] }),
  "Connect, binary over HTTP/1.1": (baseUrl, token) =>
    node.createConnectTransport({ baseUrl, httpVersion: "1.1", interceptors: [bearer(token)] }),
  "Connect, binary over HTTP/2": (baseUrl, token) =>
    node.createConnectTransport({ baseUrl, httpVersion: "2", interceptors: [bearer(token)] }),
};

/** The three services over one connection, as one principal. */
export interface Clients {
  tools: Client<typeof ToolService>;
  permissions: Client<typeof PermissionService>;
  sessions: Client<typeof SessionService>;
  /** Opens a session of the default workspace and returns its id. */
  newSession(fields?: Parameters<Client<typeof SessionService>["createSession"]>[0]): Promise<string>;
}

/** Connects to a service, until it ends. */
export function connect(
  { url }: Pick<Service, "url">,
  who: Principal,
  open: Opens = (baseUrl, token) => node.createGrpcTransport({ baseUrl, interceptors: [bearer(token)] }),
): Clients {
  const transport = open(url, `${who}-token-for-tests`);
  const sessions = createClient(SessionService, transport);
  return {
    tools: createClient(ToolService, transport),
    permissions: createClient(PermissionService, transport),
    sessions,
    async newSession(fields = {}) {
      return (await sessions.createSession(fields)).session?.id ?? "";
    },
  };
}

/** Connects to one service of the contract, with any token or none. */
export function clientOf<S extends DescService>(service: S, baseUrl: string, token = ""): Client<S> {
  return createClient(
    service,
    node.createGrpcTransport({ baseUrl, interceptors: token === "" ? [] : [bearer(token)] }),
  );
}

/** The error of a refused request: the code's number and the ErrorInfo's reason and metadata. */
export async function refusal(request: PromiseLike<unknown>) {
  const error = await Promise.resolve(request).then(
    () => {
      throw new Error("it was not refused");
    },
    (cause: unknown) => cause,
  );
  if (!(error instanceof ConnectError)) throw error;
  const [about] = error.findDetails(ErrorInfoSchema);
  return { code: error.code, reason: about?.reason, metadata: about?.metadata, message: error.rawMessage, error };
}

/** Sends a token with each request. */
export function bearer(token: string): Interceptor {
  return (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
}
