import type { Tls } from "../../config/config.ts";
import { overloaded } from "../api/request-failure.ts";

/** Returns the options of a TLS server; it requires client certificates if their authority is configured. */
export const tlsOptions = ({ cert, key, clientCa }: Tls, headersMs: number) => ({
  cert,
  key,
  ...(clientCa !== undefined && { ca: clientCa }),
  requestCert: clientCa !== undefined,
  rejectUnauthorized: clientCa !== undefined,
  minVersion: "TLSv1.2" as const,
  ALPNProtocols: ["h2", "http/1.1"],
  handshakeTimeout: headersMs,
});

/** Times that a client has on a connection. */
export interface ConnectionTimes {
  /** For the headers of a request, from their first byte. */
  headersMs: number;
  /** For the body of a request. */
  bodyMs: number;
  /** Without a request, over HTTP/1.1 or before the first one. */
  idleMs: number;
  /** Without traffic, over HTTP/2. */
  http2IdleMs: number;
}

/** Returns the limits of an HTTP/1.1 server. */
export const http1Limits = ({ headersMs, bodyMs, idleMs }: ConnectionTimes) => ({
  headersTimeout: headersMs,
  /** For the request; a response may stream for any time. */
  requestTimeout: headersMs + bodyMs,
  keepAliveTimeout: idleMs,
  connectionsCheckingInterval: Math.min(5_000, headersMs),
  maxHeaderSize: 16_384,
  /** Detects peers that vanished without closing the connection. */
  keepAlive: true,
  keepAliveInitialDelay: 30_000,
});

/**
 * Limits of an HTTP/2 server. A client may have a thousand streams that wait, and as many short requests beside them as the rest. Resets
 * beyond those of `resetLimits` end the connection with an error before anything else reads it.
 */
export const http2Limits = {
  settings: { maxConcurrentStreams: 1_100, maxHeaderListSize: 16_384, initialWindowSize: 65_535, enablePush: false },
  maxSessionMemory: 10,
  maxSessionInvalidFrames: 100,
  maxSessionRejectedStreams: 50,
  maxSettings: 16,
  streamResetBurst: 2_200,
  streamResetRate: 1_000,
};

/** Streams that a client may reset at once and each second: without a token a few; with one as many as it may have open. */
export const resetLimits = {
  withoutToken: { burst: 200, perSecond: 33 },
  withToken: { burst: 1_100, perSecond: 200 },
};

/** Time that a client has to end the stream of a request after the response, until the server closes it. */
export const refusedStreamMs = 1_000;

/** Budget of the bytes that all requests and responses together have in memory. */
export interface ByteBudget {
  /** Bytes that are reserved now. */
  readonly usedBytes: number;
  /** Takes bytes from the budget; throws OVERLOADED, and takes none, if they do not fit. */
  reserve(bytes: number): void;
  /** Returns bytes to the budget. */
  release(bytes: number): void;
}

/** Creates the budget. */
export function createByteBudget(maxBytes: number): ByteBudget {
  let usedBytes = 0;
  return {
    get usedBytes() {
      return usedBytes;
    },
    reserve(bytes) {
      if (usedBytes + bytes > maxBytes) throw overloaded("buffered_bytes", `requests hold ${maxBytes} bytes of memory`);
      usedBytes += bytes;
    },
    release(bytes) {
      usedBytes -= bytes;
    },
  };
}

/** Bytes of a budget that one principal has in memory. */
export type BudgetShare = Pick<ByteBudget, "reserve" | "release">;

/** Creates the shares of a budget, of which one principal cannot take all. */
export function createBudgetShares(budget: BudgetShare, maxBytes: number): (principalId: string) => BudgetShare {
  const used = new Map<string, number>();
  return (id) => {
    const add = (bytes: number) => {
      const now = (used.get(id) ?? 0) + bytes;
      if (now === 0) used.delete(id);
      else used.set(id, now);
    };
    return {
      reserve(bytes) {
        if ((used.get(id) ?? 0) + bytes > maxBytes)
          throw overloaded("buffered_bytes", `open inputs of one principal hold ${maxBytes} bytes of memory`);
        budget.reserve(bytes);
        add(bytes);
      },
      release(bytes) {
        budget.release(bytes);
        add(-bytes);
      },
    };
  };
}
