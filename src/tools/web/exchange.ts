import { type LookupAddress, lookup } from "node:dns";
import {
  type IncomingMessage,
  type OutgoingHttpHeaders,
  type RequestOptions,
  request as requestPlain,
} from "node:http";
import { request as requestSecure } from "node:https";
import type { LookupFunction } from "node:net";
import { pipeline, type Readable, type Transform } from "node:stream";
import { createBrotliDecompress, createGunzip, createInflate } from "node:zlib";
import { createParser, type EventSourceMessage } from "eventsource-parser";
import { httpAnswer } from "../../core/http-answer.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { Judgement } from "../../tool/tool.ts";

const maxBytes = 5 * 1024 * 1024;
const maxRedirects = 10;
const maxUrlLength = 4_096;

/** A redirect that was not followed. */
export interface PageRedirect {
  redirect: URL;
  /** The reason, for the model. */
  why: string;
}

/** Evaluates rules for an address; `leadsTo` is the IP address that its host resolves to. */
export type AddressJudge = (url: URL, leadsTo?: string) => Judgement;

/** A request over HTTP. */
export interface WebRequest {
  headers: OutgoingHttpHeaders;
  /** Sent by POST; without it the request is a GET. */
  body?: string;
  judge: AddressJudge;
  signal: AbortSignal;
}

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
 * Sends a request. It connects only to addresses that rules do not deny, and follows redirects of a GET on the same host only, if
 * rules are no stricter there than for the approved address.
 */
export async function exchange(
  first: URL,
  approved: URL,
  request: WebRequest,
): Promise<{ url: URL; response: IncomingMessage } | PageRedirect> {
  const { judge } = request;
  let url = first;
  for (let hops = 0; hops <= maxRedirects; hops++) {
    const response = await send(url, request);
    const { statusCode = 0, headers } = response;
    if (statusCode < 300 || statusCode >= 400 || headers.location === undefined) return { url, response };
    response.destroy();
    const next = target(headers.location, url);
    const why =
      request.body === undefined ? whyNotFollowed(next, url, approved, judge) : "it would send the text again";
    if (why !== undefined) return { redirect: next, why };
    url = next;
  }
  throw new ToolFailure(`${approved.href} redirects more than ${maxRedirects} times. Fetch another address.`);
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

async function send(url: URL, { judge, headers, body, signal }: WebRequest): Promise<IncomingMessage> {
  const options: RequestOptions = {
    ...(body !== undefined && { method: "POST" }),
    // A new connection, so that none is reused that was opened for another address; no proxy either.
    agent: false,
    signal,
    lookup: lookupFor(url, judge),
    headers: { "accept-language": "en-US,en;q=0.9", "accept-encoding": "gzip, deflate, br", ...headers },
  };
  const request = (url.protocol === "https:" ? requestSecure : requestPlain)(url, options);
  request.end(body);
  try {
    return await httpAnswer(request);
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

/** Reads the body of a response, at most 5 MiB after decompression. */
export async function bodyOf(response: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of chunksOf(response)) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** Reads a response of server-sent events, at most 5 MiB after decompression; ends the response when the reader stops. */
export async function* eventsOf(response: IncomingMessage): AsyncGenerator<EventSourceMessage> {
  const decoder = new TextDecoder();
  let events: EventSourceMessage[] = [];
  const parser = createParser({ onEvent: (event) => events.push(event) });
  for await (const chunk of chunksOf(response)) {
    parser.feed(decoder.decode(chunk, { stream: true }));
    yield* events;
    events = [];
  }
  // Some servers end without the empty line after the last event.
  parser.feed("\n\n");
  yield* events;
}

async function* chunksOf(response: IncomingMessage): AsyncGenerator<Buffer> {
  let size = 0;
  try {
    if (Number(response.headers["content-length"]) > maxBytes) throw tooLarge();
    for await (const chunk of decompressed(response)) {
      size += chunk.length;
      if (size > maxBytes) throw tooLarge();
      yield chunk;
    }
  } catch (cause) {
    if (cause instanceof ToolFailure || !(cause instanceof Error) || cause.name === "AbortError") throw cause;
    throw new ToolFailure(`The response broke off: ${cause.message}`, { cause });
  } finally {
    response.destroy();
  }
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
