import { type LookupAddress, lookup } from "node:dns";
import { once } from "node:events";
import { type IncomingMessage, type RequestOptions, request as requestPlain } from "node:http";
import { request as requestSecure } from "node:https";
import type { LookupFunction } from "node:net";
import { pipeline, type Readable, type Transform } from "node:stream";
import { createBrotliDecompress, createGunzip, createInflate } from "node:zlib";
import { ToolFailure } from "../../tool/errors.ts";
import type { Judgement } from "../../tool/tool.ts";

const maxBytes = 5 * 1024 * 1024;
const maxRedirects = 10;
const maxUrlLength = 4_096;

/** A fetched page. */
export interface WebPage {
  url: URL;
  contentType: string;
  body: Buffer;
}

/** A redirect that was not followed. */
export interface PageRedirect {
  redirect: URL;
  /** The reason, for the model. */
  why: string;
}

/** Evaluates rules for an address; `leadsTo` is the IP address that its host resolves to. */
type AddressJudge = (url: URL, leadsTo?: string) => Judgement;

/** Checks a web address; returns the problem, if there is one. */
export function urlProblem(text: string): string | undefined {
  if (text.length > maxUrlLength) return `has ${text.length} characters; at most ${maxUrlLength} are allowed`;
  // A parser drops some of them silently, so that approvers would see another address.
  if (/\p{Cc}/u.test(text)) return "contains a control character; remove it or write it as %XX";
  if (!/^https?:/i.test(text.trim())) return "must start with http:// or https://";
  if (!URL.canParse(text)) return "is not a valid URL; check the host name and the port";
  const { username, password, hostname } = new URL(text);
  if (username !== "" || password !== "") return "contains a user name or password; leave out the part before the @";
  // Repeated dots and `*` would be read as a pattern.
  if (!/^(\[[0-9a-f:]+\]|[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?)$/.test(hostname))
    return `has an invalid host name: ${hostname}`;
  return undefined;
}

/** Parses an address to the form that is asked for and fetched: no fragment, no dot at the end of the host. */
export function readUrl(text: string): URL {
  const url = new URL(text);
  url.hash = "";
  url.hostname = url.hostname.replace(/\.$/, "");
  return url;
}

/**
 * Fetches a web page. It connects only to addresses that rules do not deny, follows redirects only on the same host and only if
 * rules are no stricter there than for the approved address, and reads at most 5 MiB after decompression.
 */
export async function fetchPage(
  approved: URL,
  options: { judge: AddressJudge; accept: string; signal: AbortSignal },
): Promise<WebPage | PageRedirect> {
  const { judge } = options;
  let url = upgraded(approved, judge);
  for (let hops = 0; hops <= maxRedirects; hops++) {
    const response = await send(url, options);
    const { statusCode = 0, headers } = response;
    if (statusCode >= 300 && statusCode < 400 && headers.location !== undefined) {
      response.destroy();
      const next = target(headers.location, url);
      const why = whyNotFollowed(next, url, approved, judge);
      if (why !== undefined) return { redirect: next, why };
      url = next;
      continue;
    }
    if (statusCode < 200 || statusCode >= 300) {
      response.destroy();
      throw new ToolFailure(`Request failed with status code: ${statusCode} (${url.href})`);
    }
    return { url, contentType: headers["content-type"] ?? "", body: await bodyOf(response) };
  }
  throw new ToolFailure(`${approved.href} redirects more than ${maxRedirects} times. Fetch another address.`);
}

/** Upgrades http to https, unless a rule names `http://` or the address has a port. */
function upgraded(url: URL, judge: AddressJudge): URL {
  if (url.protocol !== "http:" || url.port !== "" || /^http:/i.test(judge(url).rule ?? "")) return url;
  const secure = new URL(url);
  secure.protocol = "https:";
  const { action, reason } = judge(secure);
  if (action === "deny") throw new ToolFailure(`${secure.href} is not allowed: ${reason}`);
  return secure;
}

function target(location: string, from: URL): URL {
  const problem = URL.canParse(location, from.href) ? urlProblem(new URL(location, from).href) : "is not a valid URL";
  if (problem !== undefined) throw new ToolFailure(`${from.href} redirects to an address that ${problem}.`);
  return readUrl(new URL(location, from).href);
}

const strictness = { allow: 0, ask: 1, deny: 2 };

function whyNotFollowed(next: URL, from: URL, approved: URL, judge: AddressJudge): string | undefined {
  const { action, reason } = judge(next);
  if (action === "deny")
    throw new ToolFailure(`${from.href} redirects to ${next.href}, which is not allowed: ${reason}`);
  if (next.hostname !== from.hostname) return "it is on another host";
  const isUpgrade = from.protocol === "http:" && next.protocol === "https:" && from.port === "" && next.port === "";
  if (next.origin !== from.origin && !isUpgrade) return "it has another scheme or port";
  return strictness[action] > strictness[judge(approved).action] ? "it has to be approved" : undefined;
}

async function send(url: URL, { judge, accept, signal }: Parameters<typeof fetchPage>[1]): Promise<IncomingMessage> {
  const options: RequestOptions = {
    // A new connection, so that none is reused that was opened for another address; no proxy either.
    agent: false,
    signal,
    lookup: lookupFor(url, judge),
    headers: {
      "user-agent": "Mozilla/5.0 (compatible; toolgate)",
      accept,
      "accept-language": "en-US,en;q=0.9",
      "accept-encoding": "gzip, deflate, br",
    },
  };
  const request = (url.protocol === "https:" ? requestSecure : requestPlain)(url, options);
  request.end();
  try {
    const [response] = await once(request, "response");
    // Later errors reach the reader of the response.
    request.on("error", () => undefined);
    return response;
  } catch (cause) {
    if (signal.aborted || cause instanceof ToolFailure) throw cause;
    throw new ToolFailure(`Cannot fetch ${url.href}: ${cause instanceof Error ? cause.message : cause}`, { cause });
  }
}

/** Resolves a name; fails if rules deny one of its addresses. */
function lookupFor(url: URL, judge: AddressJudge): LookupFunction {
  return (hostname, options, callback) => {
    lookup(hostname, { ...options, all: true }, (error, addresses: LookupAddress[]) => {
      const [first] = addresses ?? [];
      if (error || first === undefined) return callback(error ?? new Error(`${hostname} has no address`), "");
      for (const { address } of addresses) {
        const { action, reason } = judge(url, address);
        if (action !== "deny") continue;
        return callback(new ToolFailure(`${url.href} leads to ${address}, which is not allowed: ${reason}`), "");
      }
      if (options.all) return callback(null, addresses);
      callback(null, first.address, first.family);
    });
  };
}

async function bodyOf(response: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  try {
    if (Number(response.headers["content-length"]) > maxBytes) throw tooLarge();
    for await (const chunk of decompressed(response)) {
      size += chunk.length;
      if (size > maxBytes) throw tooLarge();
      chunks.push(chunk);
    }
  } catch (cause) {
    if (cause instanceof ToolFailure || !(cause instanceof Error) || cause.name === "AbortError") throw cause;
    throw new ToolFailure(`The response broke off: ${cause.message}`, { cause });
  } finally {
    response.destroy();
  }
  return Buffer.concat(chunks);
}

function decompressed(response: IncomingMessage): Readable {
  const encoding = (response.headers["content-encoding"] ?? "").trim().toLowerCase();
  if (encoding === "" || encoding === "identity") return response;
  const decoder = decoders.get(encoding)?.();
  // HTTP allows several encodings in a row; no server uses that.
  if (decoder === undefined) throw new ToolFailure(`The response has an unknown content encoding: ${encoding}`);
  // An error of either stream ends the second one.
  return pipeline(response, decoder, () => undefined);
}

const decoders = new Map<string, () => Transform>([
  ["gzip", createGunzip],
  ["x-gzip", createGunzip],
  ["deflate", createInflate],
  ["br", createBrotliDecompress],
]);

const tooLarge = () => new ToolFailure("Response too large (exceeds 5MB limit)");
