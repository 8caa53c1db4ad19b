import { randomUUID } from "node:crypto";
import type { DescFile } from "@bufbuild/protobuf";
import { createValidator } from "@bufbuild/protovalidate";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { file_google_rpc_error_details } from "../../../gen/google/rpc/error_details_pb.ts";
import { file_grpc_health_v1_health } from "../../../gen/grpc/health/v1/health_pb.ts";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { file_opencode_tool_v1_permission_service } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { file_opencode_tool_v1_session_service } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { file_opencode_tool_v1_tool_service } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Config } from "../../config/config.ts";
import type { Logger } from "../../core/logger.ts";
import { RequestError } from "../../core/request-error.ts";
import { createAccessGate, createAuthenticate } from "../api/access.ts";
import { createErrors, type Errors } from "../rpc/errors.ts";
import { routeReflection } from "../rpc/reflection.ts";
import { createRpcHandler, type Routes } from "../rpc/rpc-handler.ts";
import { createConsoleFiles } from "./console-files.ts";
import { createHttpGuard } from "./guard.ts";
import { createReadiness, routeHealth } from "./health.ts";
import { createSockets } from "./sockets.ts";

/** A server that accepts connections. */
export interface Listener {
  /** Where it is reached, such as `http://127.0.0.1:7420`. */
  readonly url: string;
  /**
   * Stops: not ready from now on, streams end with DRAINING, connections close as they become idle; what is left after
   * `drainMs` is cut. Resolves when every connection is closed.
   */
  close(drainMs: number): Promise<void>;
}

/** What a listener serves and by which settings. */
export interface ListenerOptions {
  config: Pick<Config, "listen" | "tls" | "hosts" | "origins" | "tokens" | "insecureNoAuth" | "limits">;
  /** Adds the domain's services; health and reflection are there anyway. */
  routes: (router: Routes, errors: Errors) => void;
  /** Whether the store answers. */
  ready: () => Promise<boolean>;
  /** Whether the replicas that share the store judge by the same policy. */
  agrees: () => boolean;
  /** What `/metrics` answers, in the text format of Prometheus. */
  metrics: () => string;
  /** The folder of the built console; it may be absent. */
  consoleDirectory: string;
  log: Logger;
  /** How long a client may take to send a request's headers. */
  headersMs?: number;
}

/** Listens on one port for Connect, gRPC-Web, gRPC and the console, over HTTP/1.1 and HTTP/2, in clear or with TLS. */
export async function createListener(options: ListenerOptions): Promise<Listener> {
  const { config, routes, ready, agrees, metrics, consoleDirectory, log, headersMs = 15_000 } = options;
  const shutdown = new AbortController();
  const readiness = createReadiness({ ready, agrees }, shutdown.signal);
  const errors = createErrors({ log, newId: randomUUID });
  const authenticate = createAuthenticate(config);
  const rpcs = createRpcHandler({
    routes(router) {
      routes(router, errors);
      routeHealth(router, readiness, services);
      routeReflection(router, [...domain, file_grpc_health_v1_health, file_google_rpc_error_details]);
    },
    gate: createAccessGate(authenticate),
    errors,
    log,
    validator: createValidator({ regexMatch: createMatcher() }),
    // A misspelt field or enum value is an error, not a default.
    jsonOptions: { ignoreUnknownFields: false },
    readMaxBytes: config.limits.requestBytes,
    acceptCompression: [compressionGzip, compressionBrotli],
    compressMinBytes: 65_536,
    maxTimeoutMs: 86_400_000,
    shutdownSignal: shutdown.signal,
  });
  const pages = createConsoleFiles(consoleDirectory, rpcs);
  const guard = createHttpGuard({ config, readiness, metrics, authenticate, errors }, pages);
  const sockets = createSockets(guard, { headersMs, tls: config.tls });

  const { host } = config.listen;
  const scheme = config.tls === undefined ? "http" : "https";
  const port = await sockets.listen(host, config.listen.port);
  return {
    url: `${scheme}://${host.includes(":") ? `[${host}]` : host}:${port}`,
    async close(drainMs) {
      shutdown.abort(draining());
      const cut = await sockets.close(drainMs);
      if (cut > 0) log.warn("connections were cut at the end of the drain", { count: cut });
    },
  };
}

const domain: readonly DescFile[] = [
  file_opencode_tool_v1_tool_service,
  file_opencode_tool_v1_permission_service,
  file_opencode_tool_v1_session_service,
];

const services = domain.flatMap((file) => file.services.map(({ typeName }) => typeName));

/** The patterns are the contract's own, few and plain: node matches them in a fifth of the time that the default takes. */
function createMatcher() {
  const known = new Map<string, RegExp>();
  return (pattern: string, text: string) => {
    const matcher = known.get(pattern) ?? new RegExp(pattern, "u");
    known.set(pattern, matcher);
    return matcher.test(text);
  };
}

function draining(): RequestError {
  return new RequestError(
    ErrorReason.DRAINING,
    "this replica is going away; open the stream again after the last number seen",
  );
}
