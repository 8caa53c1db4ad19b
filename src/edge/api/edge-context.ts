import type { Peer } from "../../core/peer-uid.ts";
import type { Principal, Role } from "../../core/principal.ts";
import type { TraceContext } from "../../tool/tool.ts";

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
