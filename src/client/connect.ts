import type { Socket } from "node:net";
import type { JsonObject } from "@bufbuild/protobuf";
import { type Client, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { AgentService } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { ChannelService } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import { OperatorService } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PersonService } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { SourceService } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import type { PermissionRequest, ToolStateCompleted } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { WorkerService } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import { type ConnectOptions, findServer } from "./find-server.ts";
import { type ClientCallOptions, callToEnd, streamCall } from "./make-call.ts";
import { type AnswerOptions, type AskOptions, replyToAsk, watchAsks } from "./open-asks.ts";
import { type ClientLink, isUnreachable, unreachedError } from "./resume-stream.ts";
import { openVerifiedSocket, PeerError, type PeerProof } from "./verified-socket.ts";

/** The generated clients over one HTTP/2 connection, and what most programs need of them. */
export interface ToolgateClient {
  readonly url: string;
  readonly tools: Client<typeof ToolService>;
  readonly sessions: Client<typeof SessionService>;
  readonly permissions: Client<typeof PermissionService>;
  readonly credentials: Client<typeof CredentialService>;
  readonly agents: Client<typeof AgentService>;
  readonly sources: Client<typeof SourceService>;
  readonly operator: Client<typeof OperatorService>;
  readonly people: Client<typeof PersonService>;
  readonly channels: Client<typeof ChannelService>;
  readonly workers: Client<typeof WorkerService>;
  /** Makes a call and waits for its end, across restarts of the service. Throws `CallFailed` if it ends without a result. */
  call(tool: string, input: JsonObject, options?: ClientCallOptions): Promise<ToolStateCompleted>;
  /** Makes a call and yields its events, each once, up to its terminal state, across restarts of the service. */
  stream(tool: string, input: JsonObject, options?: ClientCallOptions): AsyncGenerator<SessionEvent>;
  /** Yields open permission requests as they come, each once, across restarts of the service. */
  asks(options?: AskOptions): AsyncGenerator<PermissionRequest>;
  /** Answers a permission request as it was shown; once it returns, this answer has won. */
  reply(
    ask: Pick<PermissionRequest, "sessionId" | "id" | "digest">,
    reply: "once" | "always" | "reject",
    options?: AnswerOptions,
  ): Promise<void>;
  /** Ends the connection, and all that waits on it. Calls go on. */
  close(): void;
}

/** Connects to a service over gRPC, by default to that of the environment. Nothing is sent before the first request. */
export function connect(options: Partial<ConnectOptions> = {}): ToolgateClient {
  const { url, token, ...certificates } = findServer(options, "caller");
  return clientOver(new Http2SessionManager(url, pings, certificates), url, [...bearer(token), unreachable(url)]);
}

/** Connects with these options alone. */
export function connectWith({ url, token, ...certificates }: ConnectOptions): ToolgateClient {
  return clientOver(new Http2SessionManager(url, pings, certificates), url, bearer(token));
}

/**
 * Connects to a service after it has verified who answers there, so that the token reaches no other program. The client has this
 * one connection: when it ends, requests fail, and a new client verifies again.
 */
export async function connectVerified(options: ConnectOptions, proof: PeerProof): Promise<ToolgateClient> {
  const { url, token, ...certificates } = options;
  let socket: Socket | undefined = await openVerifiedSocket(url, proof, certificates);
  const createConnection = () => {
    const first = socket;
    socket = undefined;
    if (first === undefined) throw new PeerError(`the connection to ${url} ended`);
    return first;
  };
  return clientOver(new Http2SessionManager(url, pings, { createConnection }), url, bearer(token));
}

function clientOver(sessionManager: Http2SessionManager, url: string, interceptors: Interceptor[]): ToolgateClient {
  const transport = createGrpcTransport({ baseUrl: url, sessionManager, interceptors, defaultTimeoutMs: 30_000 });
  const [tools, sessions] = [createClient(ToolService, transport), createClient(SessionService, transport)];
  const permissions = createClient(PermissionService, transport);
  const closing = new AbortController();
  const link: ClientLink = { url, isReached: false, closed: closing.signal };
  return {
    ...{ url, tools, sessions, permissions },
    credentials: createClient(CredentialService, transport),
    agents: createClient(AgentService, transport),
    sources: createClient(SourceService, transport),
    operator: createClient(OperatorService, transport),
    people: createClient(PersonService, transport),
    channels: createClient(ChannelService, transport),
    workers: createClient(WorkerService, transport),
    call: (tool, input, options) => callToEnd({ tools, sessions, link }, tool, input, options),
    stream: (tool, input, options) => streamCall({ tools, sessions, link }, tool, input, options),
    asks: (options) => watchAsks({ permissions, link }, options),
    reply: (ask, reply, options) => replyToAsk({ permissions, link }, ask, reply, options),
    close() {
      closing.abort(new Error("this client was closed: connect again"));
      sessionManager.abort();
    },
  };
}

/** Pings detect a dead connection; without them a stream would wait on it forever. */
const pings = { pingIntervalMs: 20_000, pingTimeoutMs: 10_000 };

function bearer(token: string | undefined): Interceptor[] {
  if (token === undefined) return [];
  return [
    (next) => (request) => {
      request.header.set("authorization", `Bearer ${token}`);
      return next(request);
    },
  ];
}

/** Gives the error of a connection that was never made its next step. */
function unreachable(url: string): Interceptor {
  return (next) => async (request) => {
    try {
      return await next(request);
    } catch (cause) {
      throw isUnreachable(cause) ? unreachedError(url, cause) : cause;
    }
  };
}
