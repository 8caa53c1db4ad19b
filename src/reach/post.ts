import { type LookupAddress, lookup } from "node:dns";
import { once } from "node:events";
import { type IncomingMessage, request as requestPlain } from "node:http";
import { request as requestSecure } from "node:https";
import type { LookupFunction } from "node:net";
import { privateHost } from "../policy/address.ts";
import type { ChannelAnswer } from "./ports.ts";

/** Address of a provider, as the operator wrote it. */
export interface ProviderTarget {
  readonly url: URL;
  /** The operator named the port as well as the host, so that it may be on a private network. */
  readonly isNamed: boolean;
}

/** Reads an address of the configuration. */
export function readTarget(written: string): ProviderTarget {
  return { url: new URL(written), isNamed: /^https?:\/\/[^/?#]*:\d+(?:[/?#]|$)/i.test(written) };
}

/**
 * Posts a body and returns the status. Follows no redirect, uses no proxy, and resolves the name once: an address that is not public
 * is refused unless the operator named host and port. The response is not read.
 */
export async function post(
  { url, isNamed }: ProviderTarget,
  { headers, body, signal }: { headers: Readonly<Record<string, string>>; body: string; signal: AbortSignal },
): Promise<{ status: number; retryAfterMs?: number }> {
  const host = url.hostname.replace(/^\[|\]$/g, "").replace(/\.$/, "");
  const why = isNamed ? undefined : privateHost(host);
  if (why !== undefined) throw new Error(why);
  const request = (url.protocol === "https:" ? requestSecure : requestPlain)(url, {
    ...{ method: "POST", agent: false, signal, lookup: lookupFor(isNamed) },
    headers: { "content-type": "application/json", "user-agent": "Toolgate", ...headers },
  });
  request.end(body);
  const [response]: [IncomingMessage] = (await once(request, "response")) as [IncomingMessage];
  request.on("error", () => undefined);
  response.destroy();
  const retryAfterMs = afterMs(response.headers["retry-after"]);
  return { status: response.statusCode ?? 0, ...(retryAfterMs !== undefined && { retryAfterMs }) };
}

function lookupFor(isNamed: boolean): LookupFunction {
  return (hostname, options, callback) => {
    lookup(hostname, { ...options, all: true }, (error, addresses: LookupAddress[]) => {
      const [first] = addresses ?? [];
      if (error || first === undefined) return callback(error ?? new Error(`${hostname} has no address`), "");
      const why = isNamed ? undefined : addresses.map(({ address }) => privateHost(address)).find(Boolean);
      if (why !== undefined) return callback(new Error(`${hostname} is refused: ${why}`), "");
      if (options.all) return callback(null, addresses);
      callback(null, first.address, first.family);
    });
  };
}

/** Reads the header Retry-After: seconds or a date, at most an hour. */
function afterMs(header: string | undefined): number | undefined {
  if (header === undefined) return undefined;
  const ms = /^\d{1,9}$/.test(header) ? Number(header) * 1_000 : Date.parse(header) - Date.now();
  return Number.isFinite(ms) ? Math.min(Math.max(ms, 0), 3_600_000) : undefined;
}

/** Classifies a status: 2xx accepts, 410 ends the channel, other 4xx but 408, 425 and 429 refuse the message. A redirect is a failure. */
export function answerOf({ status, retryAfterMs }: { status: number; retryAfterMs?: number }): ChannelAnswer {
  if (status >= 200 && status < 300) return { answer: "accepted" };
  const why = `it answered ${status}`;
  if (status === 410) return { answer: "refused", why, disable: true };
  const isFinal = status >= 400 && status < 500 && ![408, 425, 429].includes(status);
  if (isFinal) return { answer: "refused", why };
  return { answer: "retry", why, ...(retryAfterMs !== undefined && { afterMs: retryAfterMs }) };
}
