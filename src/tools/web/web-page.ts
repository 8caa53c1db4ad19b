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

/** What came from a web address. */
export interface WebPage {
  url: URL;
  contentType: string;
  body: Buffer;
}

/** Where an answer points to and what was not followed. */
export interface PageRedirect {
  redirect: URL;
  /** Why it was not followed, for the model. */
  why: string;
}

/** What rules say of an address; `leadsTo` is the IP address that its host's name leads to. */
type Judge = (url: URL, leadsTo?: string) => Judgement;

/** What is wrong with a text as a web address, if anything. */
export function urlProblem(text: string): string | undefined {
  if (text.length > maxUrlLength) return `has ${text.length} characters; at most ${maxUrlLength} are allowed`;
  // A parser drops some of them silently, so that people would be shown another address.
  if (/\p{Cc}/u.test(text)) return "contains a control character; remove it or write it as %XX";
  if (!/^https?:/i.test(text.trim())) return "must start with http:// or https://";
  if (!URL.canParse(text)) return "is not a valid URL; check the host name and the port";
  const { username, password, hostname } = new URL(text);
  if (username !== "" || password !== "") return "contains a user name or password; leave out what stands before the @";
  // What is left of dots at the end and in a row, and `*`, would be read as a pattern.
  if (!/^(\[[0-9a-f:]+\]|[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?)$/.test(hostname))
    return `has an invalid host name: ${hostname}`;
  return undefined;
}

/** The address in the form that is asked for and fetched: no fragment, no dot at the end of the host. */
export function readUrl(text: string): URL {
  const url = new URL(text);
  url.hash = "";
  url.hostname = url.hostname.replace(/\.$/, "");
  return url;
}

/**
 * Fetches a web page. It connects only to addresses that rules let it, follows redirects only on the same host and to what
 * rules judge no more strictly than what was approved, and takes at most 5 MiB, counted after decompression.
 */
export async function fetchPage(
  approved: URL,
  options: { judge: Judge; accept: string; signal: AbortSignal },
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

/** Plain http is used where a rule says `http://`, or for a port of its own; else the same address over https. */
function upgraded(url: URL, judge: Judge): URL {
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

function whyNotFollowed(next: URL, from: URL, approved: URL, judge: Judge): string | undefined {
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
    // A connection of its own, so that none is used that was opened for another address; no proxy either.
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
    // From here on whoever reads the response is told.
    request.on("error", () => undefined);
    return response;
  } catch (cause) {
    if (signal.aborted || cause instanceof ToolFailure) throw cause;
    throw new ToolFailure(`Cannot fetch ${url.href}: ${cause instanceof Error ? cause.message : cause}`, { cause });
  }
}

/** Resolves a name and lets only those of its addresses be connected to that the rules do not deny, or none. */
function lookupFor(url: URL, judge: Judge): LookupFunction {
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
    throw new ToolFailure(`The answer broke off: ${cause.message}`, { cause });
  } finally {
    response.destroy();
  }
  return Buffer.concat(chunks);
}

function decompressed(response: IncomingMessage): Readable {
  const encoding = (response.headers["content-encoding"] ?? "").trim().toLowerCase();
  if (encoding === "" || encoding === "identity") return response;
  const decoder = decoders.get(encoding)?.();
  // Several in a row are allowed, but nobody sends them for a reason.
  if (decoder === undefined) throw new ToolFailure(`The answer has an unknown content encoding: ${encoding}`);
  // An error of either ends the reading of the second.
  return pipeline(response, decoder, () => undefined);
}

const decoders = new Map<string, () => Transform>([
  ["gzip", createGunzip],
  ["x-gzip", createGunzip],
  ["deflate", createInflate],
  ["br", createBrotliDecompress],
]);

const tooLarge = () => new ToolFailure("Response too large (exceeds 5MB limit)");
