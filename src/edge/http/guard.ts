import { cors } from "@connectrpc/connect";
import { codeToHttpStatus, errorToJsonBytes } from "@connectrpc/connect/protocol-connect";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Config } from "../../config/config.ts";
import { RequestError } from "../../core/request-error.ts";
import { type Authenticate, checkReadsMetrics } from "../api/access.ts";
import type { Errors } from "../rpc/errors.ts";
import type { Readiness } from "./health.ts";
import type { Handler, Request, Response } from "./sockets.ts";

/** What stands before the rpcs: which hosts are answered for, which web pages may call, the probes and the metrics. */
export function createHttpGuard(
  options: {
    config: Pick<Config, "listen" | "hosts" | "origins">;
    readiness: Readiness;
    metrics: () => string;
    authenticate: Authenticate;
    errors: Errors;
  },
  next: Handler,
): Handler {
  const { config, readiness, metrics, authenticate, errors } = options;
  const hosts = new Set(["localhost", "127.0.0.1", "[::1]", inHeader(config.listen.host), ...config.hosts].map(lower));
  const origins = new Set(config.origins);

  const refuse = (error: unknown, response: Response) => {
    const refusal = errors.toConnectError(error, "http");
    send(response, codeToHttpStatus(refusal.code), "application/json", errorToJsonBytes(refusal, undefined));
  };

  const refuseHost = (host: string, response: Response) => {
    const refusal = new RequestError(
      ErrorReason.HOST_REFUSED,
      `this server does not answer for the host "${host}"; call it by a name it knows, or add the name to hosts in toolgate.toml`,
      { host },
    );
    refuse(refusal, response);
  };

  const tellMetrics = ({ headers }: Request, response: Response) => {
    try {
      checkReadsMetrics(authenticate(headers.authorization ?? null));
    } catch (error) {
      return refuse(error, response);
    }
    send(response, 200, "text/plain; version=0.0.4; charset=utf-8", metrics());
  };

  return (request, response) => {
    const stranger = hostsOf(request).find((host) => !hosts.has(lower(withoutPort(host))));
    if (stranger !== undefined) return refuseHost(stranger, response);

    const allowed = allowOrigin(request, response, origins);
    if (request.method === "OPTIONS") return preflight(response, allowed);
    if (request.url === "/healthz") return send(response, 200, "text/plain", "ok\n");
    if (request.url === "/readyz") return void readyz(response, readiness);
    if (request.url === "/metrics") return tellMetrics(request, response);
    next(request, response);
  };
}

/** Every name under which the request asks for a host; an empty one if it names none. */
function hostsOf({ headers }: Request): string[] {
  const named = [headers[":authority"], headers.host].filter((host) => typeof host === "string");
  return named.length > 0 ? named : [""];
}

const withoutPort = (host: string) => host.replace(/:\d{1,5}$/, "");
const inHeader = (host: string) => (host.includes(":") ? `[${host}]` : host);
const lower = (text: string) => text.toLowerCase();

/** Lets a page of a configured origin read the answer; any other origin is told nothing. */
function allowOrigin({ headers }: Request, response: Response, origins: ReadonlySet<string>): boolean {
  if (origins.size === 0) return false;
  response.setHeader("vary", "origin");
  const { origin } = headers;
  if (origin === undefined || !origins.has(origin)) return false;
  response.setHeader("access-control-allow-origin", origin);
  response.setHeader("access-control-expose-headers", cors.exposedHeaders.join(", "));
  return true;
}

function preflight(response: Response, allowed: boolean): void {
  if (!allowed) {
    send(response, 403, "text/plain", "this origin may not call; add it to origins in toolgate.toml\n");
    return;
  }
  response.setHeader("access-control-allow-methods", "POST");
  response.setHeader(
    "access-control-allow-headers",
    [...cors.allowedHeaders, "authorization", "traceparent", "tracestate"].join(", "),
  );
  response.setHeader("access-control-max-age", "7200");
  response.statusCode = 204;
  response.end();
}

async function readyz(response: Response, readiness: Readiness): Promise<void> {
  const reason = await readiness.reason();
  send(response, reason === undefined ? 200 : 503, "text/plain", `${reason ?? "ok"}\n`);
}

function send(response: Response, status: number, type: string, body: string | Uint8Array): void {
  response.statusCode = status;
  response.setHeader("content-type", type);
  response.end(body);
}
