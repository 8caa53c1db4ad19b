import { type LookupAddress, lookup } from "node:dns";
import { request as requestPlain } from "node:http";
import { request as requestSecure } from "node:https";
import type { LookupFunction } from "node:net";
import { httpAnswer, httpText } from "../core/http-answer.ts";
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
 * is refused unless the operator named host and port. The response is read only up to `maxAnswerBytes`; a longer one is an error.
 */
export async function post(
  { url, isNamed }: ProviderTarget,
  {
    headers,
    body,
    signal,
    maxAnswerBytes = 0,
    maxBytes = maxBodyBytes,
  }: {
    headers: Readonly<Record<string, string>>;
    body: string | Uint8Array;
    signal: AbortSignal;
    maxAnswerBytes?: number;
    maxBytes?: number;
  },
): Promise<{ status: number; retryAfterMs?: number; text?: string }> {
  const host = url.hostname.replace(/^\[|\]$/g, "").replace(/\.$/, "");
  const why = isNamed ? undefined : privateHost(host);
  if (why !== undefined) throw new PrivateTarget(why);
  if (Buffer.byteLength(body) > maxBytes) throw new TooLarge();
  const request = (url.protocol === "https:" ? requestSecure : requestPlain)(url, {
    ...{ method: "POST", agent: false, signal, lookup: lookupFor(isNamed) },
    headers: { "content-type": "application/json", "user-agent": "Toolgate", ...headers },
  });
  request.end(body);
  const response = await httpAnswer(request);
  const read = maxAnswerBytes > 0 ? { text: await httpText(response, maxAnswerBytes, "its answer is too long") } : {};
  response.destroy();
  const retryAfterMs = afterMs(response.headers["retry-after"]);
  return { status: response.statusCode ?? 0, ...read, ...(retryAfterMs !== undefined && { retryAfterMs }) };
}

function lookupFor(isNamed: boolean): LookupFunction {
  return (hostname, options, callback) => {
    lookup(hostname, { ...options, all: true }, (error, addresses: LookupAddress[]) => {
      const [first] = addresses ?? [];
      if (error || first === undefined) return callback(error ?? new Error(`${hostname} has no address`), "");
      const why = isNamed ? undefined : addresses.map(({ address }) => privateHost(address)).find(Boolean);
      if (why !== undefined) return callback(new PrivateTarget(why), "");
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

/** Maximum size of a message to a provider. */
const maxBodyBytes = 65_536;

/** A message that is larger. */
class TooLarge extends Error {}

/** A target on a private network whose port the operator did not name. */
class PrivateTarget extends Error {}

type FailedAnswer = Exclude<ChannelAnswer, { answer: "accepted" }>;

/** Describes an attempt without an answer. Texts of errors may contain an address with a secret, so only their codes are used. */
export function failureOf(error: unknown): FailedAnswer {
  if (error instanceof TooLarge)
    return { answer: "refused", why: "the message has over 64 KiB", next: 'send less: content = "risk"' };
  if (error instanceof PrivateTarget)
    return { answer: "retry", why: error.message, next: "write the port into its url: that allows a private address" };
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  const why = code || "it cannot be reached";
  const next = advice.find(([codes]) => codes.test(why))?.[1];
  return { answer: "retry", why, next: next ?? "check that it runs, and that this machine reaches its host and port" };
}

/** What an operator does about an error code or a status. */
const advice: readonly (readonly [codes: RegExp, next: string])[] = [
  [/ENOTFOUND|EAI_AGAIN/, "check the host in its url, and the name server of this machine"],
  [
    /CERT|SELF_SIGNED|UNABLE_TO_/,
    "use a certificate of a public authority, or name the authority in NODE_EXTRA_CA_CERTS of the service",
  ],
  [/ 40[13]$/, "check the key or token in its secret_file, and that it may write there"],
  [/ 404$/, "check the path of its url"],
  [/ 410$/, "it takes no more notices: correct its url, then start the service again"],
  [/ 429$/, "it limits how often it is called: wait, then test again"],
  [/ 3\d\d$/, "redirects are not followed: write the address to which it leads as its url"],
  [/ 4\d\d$/, "it does not take notices of this form: check its url and kind"],
  [/ 5\d\d$/, "it failed: read its log, then test again"],
];

/** Classifies a status: 2xx accepts, 410 ends the channel, other 4xx but 408, 425 and 429 refuse the message. A redirect is a failure. */
export function answerOf({ status, retryAfterMs }: { status: number; retryAfterMs?: number }): ChannelAnswer {
  const why = `it answered ${status}`;
  if (status >= 200 && status < 300) return { answer: "accepted", why };
  const next = advice.find(([codes]) => codes.test(why))?.[1] ?? "";
  if (status === 410) return { answer: "refused", why, next, disable: true };
  const isFinal = status >= 400 && status < 500 && ![408, 425, 429].includes(status);
  if (isFinal) return { answer: "refused", why, next };
  return { answer: "retry", why, next, ...(retryAfterMs !== undefined && { afterMs: retryAfterMs }) };
}
