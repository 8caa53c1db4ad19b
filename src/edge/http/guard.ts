import { cors } from "@connectrpc/connect";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Config } from "../../config/config.ts";
import { RequestError } from "../../core/request-error.ts";
import { type Handler, type Refuse, type Request, type Response, sendWhole } from "./handler.ts";
import { isProbe } from "./probes.ts";

/** Creates the guard before all doors: it refuses unknown hosts, except for probes of health, and answers the preflight requests of web pages. */
export function createHttpGuard(
  { listen, hosts, origins, publicUrl }: Pick<Config, "listen" | "hosts" | "origins" | "publicUrl">,
  refuse: Refuse,
  next: Handler,
): Handler {
  const knownHosts = new Set(["localhost", "127.0.0.1", "[::1]", inHeader(listen.host), ...hosts].map(lower));
  if (publicUrl !== undefined) knownHosts.add(new URL(publicUrl).hostname);
  const knownOrigins = new Set(origins);

  return (request, response) => {
    if (countHosts(request) > 1) return refuse(manyHosts(), request, response);
    // HTTP/2 has the host in another place; what follows reads it from the header of HTTP/1.1.
    request.headers.host ??= authorityOf(request);
    const known = (host: string) => knownHosts.has(host) || host === reachedAddress(request);
    // A port above 65535 makes no URL, which is what follows makes of the host.
    const unknown = hostsOf(request).find(
      (host) => !known(lower(withoutPort(host))) || !URL.canParse(`http://${host}`),
    );
    if (unknown !== undefined && !isProbe(request)) return refuse(hostRefused(unknown), request, response);
    const isAllowed = allowOrigin(request, response, knownOrigins);
    if (request.method === "OPTIONS") return preflight(response, isAllowed);
    next(request, response);
  };
}

function hostRefused(host: string): RequestError {
  return new RequestError(
    ErrorReason.HOST_REFUSED,
    `this server does not answer for the host "${host}"; call it by a name it knows, or add the name to hosts in toolgate.toml`,
    { host },
  );
}

function authorityOf({ headers }: Request): string | undefined {
  const authority = headers[":authority"];
  return typeof authority === "string" ? authority : undefined;
}

function manyHosts(): RequestError {
  return new RequestError(ErrorReason.HOST_REFUSED, "the request has more than one Host header; send exactly one");
}

/** Counts the Host headers: Node passes on the first one only, and a proxy may have read another one. */
function countHosts({ rawHeaders }: Request): number {
  return rawHeaders.filter((name, index) => index % 2 === 0 && name.length === 4 && lower(name) === "host").length;
}

/** Returns every host that the request names; an empty one if it names none. */
function hostsOf({ headers }: Request): string[] {
  const named = [headers[":authority"], headers.host].filter((host) => typeof host === "string");
  return named.length > 0 ? named : [""];
}

/** Returns the address of ours that the connection reached. A page that a name led here names that name, never this address. */
function reachedAddress({ socket: { localAddress } }: Request): string | undefined {
  return localAddress && inHeader(localAddress.replace(/^::ffff:(?=\d+\.)/, ""));
}

const withoutPort = (host: string) => host.replace(/:\d{1,5}$/, "");
const inHeader = (host: string) => (host.includes(":") ? `[${host}]` : host);
const lower = (text: string) => text.toLowerCase();

/** Lets a page of a configured origin read the response; a page of any other origin gets no such header. */
function allowOrigin({ headers }: Request, response: Response, origins: ReadonlySet<string>): boolean {
  if (origins.size === 0) return false;
  response.setHeader("vary", "origin");
  const { origin } = headers;
  if (origin === undefined || !origins.has(origin)) return false;
  response.setHeader("access-control-allow-origin", origin);
  response.setHeader("access-control-expose-headers", [...cors.exposedHeaders, "mcp-session-id"].join(", "));
  return true;
}

/** Headers that requests of a page may have in addition to those of Connect. */
const ownHeaders = [
  ...["authorization", "traceparent", "tracestate", "toolgate-session"],
  ...["x-opencode-directory", "x-opencode-workspace", "last-event-id"],
  ...["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id"],
];

function preflight(response: Response, isAllowed: boolean): void {
  if (!isAllowed) {
    sendWhole(response, 403, "text/plain", "this origin may not call; add it to origins in toolgate.toml\n");
    return;
  }
  response.setHeader("access-control-allow-methods", "POST, PATCH, DELETE");
  response.setHeader("access-control-allow-headers", [...cors.allowedHeaders, ...ownHeaders].join(", "));
  response.setHeader("access-control-max-age", "7200");
  response.statusCode = 204;
  response.end();
}
