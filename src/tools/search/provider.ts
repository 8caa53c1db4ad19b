import { createHash } from "node:crypto";
import type { IncomingMessage } from "node:http";
import type { JsonObject } from "@bufbuild/protobuf";
import type { LocalSearch, RemoteSearch } from "../../core/search-providers.ts";
import { visible } from "../../core/visible.ts";
import { ToolFailure } from "../../tool/errors.ts";
import { fence } from "../../tool/fence.ts";
import type { Judge } from "../../tool/tool.ts";
import { type AddressJudge, bodyOf, eventsOf, exchange, urlProblem } from "../web/exchange.ts";

/** The request for one search; its path is appended to the base address. */
interface SearchRequest {
  readonly path: string;
  readonly search?: Readonly<Record<string, string>>;
  readonly headers?: Readonly<Record<string, string>>;
  /** Sent by POST; without it the request is a GET. */
  readonly json?: JsonObject;
  /** The status codes that mean something else at this provider, with their text for the model. */
  readonly statuses?: Readonly<Record<number, string>>;
}

/** The answer of a provider with status 200. The key does not occur in it. */
export interface SearchAnswer {
  json(): Promise<unknown>;
  events(): AsyncIterable<{ event?: string | undefined; data: string }>;
}

/** Translates searches to the form of one provider, and its answers to results. */
export interface SearchAdapter<Query, Result> {
  request(query: Query, key: string | undefined): SearchRequest;
  /** Throws for an answer in another form. */
  read(answer: SearchAnswer, query: Query): Promise<Result[]>;
}

/** A search of the web, in the words of the tool's input. */
export interface WebQuery {
  readonly query: string;
  readonly numResults: number;
  readonly type: "auto" | "fast" | "deep";
  readonly livecrawl: "fallback" | "preferred";
  readonly contextMaxCharacters: number;
}

/** A page that a web search found; all of it is untrusted. */
export interface WebResult {
  readonly url?: string | undefined;
  readonly title?: string | undefined;
  /** A date in any form. */
  readonly published?: string | undefined;
  readonly content: string;
}

/** A search of code, in the words of the tool's input. */
export interface CodeQuery {
  readonly query: string;
  readonly language: readonly string[];
  readonly repo?: string | undefined;
  readonly path?: string | undefined;
  readonly useRegexp: boolean;
}

/** A file that a code search found; all of it is untrusted. */
export interface CodeResult {
  readonly repo: string;
  readonly path: string;
  readonly url?: string | undefined;
  /** Matching lines, numbered from 1. */
  readonly lines: readonly { number?: number | undefined; text: string }[];
}

/** Digest of where a search goes, so that an approval does not hold for a provider that was configured later. */
export function placeDigest(settings: RemoteSearch | LocalSearch): string {
  const place = "url" in settings ? settings.url : settings.roots;
  return createHash("sha256")
    .update(JSON.stringify([settings.provider, place]))
    .digest("hex");
}

/** A search by a configured provider, for errors and rules. */
interface ProviderSearch {
  /** The subject of its errors. */
  readonly subject: "Web search" | "Code search";
  readonly tool: "websearch" | "codesearch";
  readonly settings: RemoteSearch;
  readonly judge: Judge;
}

/** Throws unless rules let the service connect to the provider: the rules of `webfetch` apply, and an ask counts as allowed. */
export function checkProvider(search: ProviderSearch): void {
  const url = new URL(search.settings.url);
  const { action, reason } = judgeOf(search)(url);
  if (action !== "deny") return;
  throw new ToolFailure(
    `${search.subject} is not possible: the provider's address ${url.href} is not allowed: ${reason}. Its operator can allow it under [permission.webfetch], or name another url in [${search.tool}].`,
  );
}

/** Sends a search to its provider and returns the results. Each error names its cause and the next step, and none holds the key. */
export async function askProvider<Query, Result>(
  search: ProviderSearch,
  adapter: SearchAdapter<Query, Result>,
  query: Query,
  signal: AbortSignal,
): Promise<Result[]> {
  const { subject, settings } = search;
  const key = settings.key?.();
  const late = AbortSignal.timeout(settings.timeoutMs);
  try {
    checkProvider(search);
    const request = adapter.request(query, key);
    const response = await send(search, request, AbortSignal.any([signal, late]));
    return await adapter.read(answerOf(response, hiding(key)), query);
  } catch (cause) {
    signal.throwIfAborted();
    const { host } = new URL(settings.url);
    if (late.aborted)
      throw new ToolFailure(
        `${subject} timed out: ${host} did not answer within ${settings.timeoutMs / 1_000} s. Try again later, or with a simpler query.`,
      );
    // A new error without the cause, whose text may hold the key.
    if (cause instanceof ToolFailure) throw new ToolFailure(hiding(key)(cause.message));
    throw new ToolFailure(
      `${subject} failed: ${host} did not answer in the form of ${settings.provider}. The operator should check provider and url in [${search.tool}].`,
    );
  }
}

async function send(
  search: ProviderSearch,
  { path, search: parameters = {}, headers = {}, json, statuses = {} }: SearchRequest,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  const { subject, tool, settings } = search;
  const url = new URL(`${settings.url}${path}`);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  const found = await exchange(url, new URL(settings.url), {
    headers: {
      "user-agent": "toolgate",
      accept: "application/json",
      ...(json !== undefined && { "content-type": "application/json" }),
      ...headers,
    },
    ...(json !== undefined && { body: JSON.stringify(json) }),
    judge: judgeOf(search),
    signal,
  });
  if ("redirect" in found)
    throw new ToolFailure(
      `${subject} failed: the provider redirects to ${found.redirect.host}, which was not followed, because ${found.why}. The operator should correct url in [${tool}].`,
    );
  const { response } = found;
  const { statusCode = 0 } = response;
  if (statusCode === 200) return response;
  response.destroy();
  throw new ToolFailure(statusText(search, statusCode, { after: response.headers["retry-after"], statuses }));
}

function statusText(
  { subject, tool }: ProviderSearch,
  status: number,
  { after = "", statuses }: { after: string | undefined; statuses: Readonly<Record<number, string>> },
): string {
  const own = statuses[status];
  if (own !== undefined) return `${subject} request failed (HTTP ${status}): ${own}`;
  if (status === 429) {
    const wait = /^\d{1,5}$/.test(after) ? `Try again in ${after} s.` : "Wait a minute before the next search.";
    return `${subject} rate limited (HTTP 429). ${wait}`;
  }
  if (status === 401 || status === 403)
    return `${subject} authentication failed (HTTP ${status}). The operator should correct key_file or key_env in [${tool}], then send the service SIGHUP.`;
  const next = status < 500 ? "Try another query." : "Try again later.";
  return `${subject} request failed (HTTP ${status}). ${next}`;
}

/** The address that is configured may be private; one that a redirect names may not. */
function judgeOf({ judge, settings }: ProviderSearch): AddressJudge {
  const { origin } = new URL(settings.url);
  return (url, leadsTo) =>
    judge({
      permission: "webfetch",
      patterns: [url.href],
      ...(leadsTo !== undefined && { leadsTo }),
      ...(settings.isUrlConfigured && url.origin === origin && { isConfigured: true }),
    });
}

function answerOf(response: IncomingMessage, hide: (text: string) => string): SearchAnswer {
  return {
    json: async () => JSON.parse(hide((await bodyOf(response)).toString())),
    async *events() {
      for await (const { event, data } of eventsOf(response)) yield { event, data: hide(data) };
    },
  };
}

/** Makes the function that takes a key out of a text. */
function hiding(key: string | undefined): (text: string) => string {
  if (key === undefined) return (text) => text;
  return (text) => text.replaceAll(key, "[key]").replaceAll(encodeURIComponent(key), "[key]");
}

/** Maximum size of one result. */
const maxResultBytes = 8_192;
/** Maximum size of all results of a call; with the fences they fit into the output, so that no fence is cut off. */
export const maxResultsBytes = 45_000;

/** Results as the model sees them. */
export interface ShownResults {
  text: string;
  shown: number;
  /** The number of results that were left out, since their address is none of the web. */
  leftOut: number;
  /** True if a result was cut. */
  isCut: boolean;
}

/** Shows pages that were found, each in its own fence. */
export function showWebResults(results: readonly WebResult[], maxBytes: number): ShownResults {
  const usable = results.filter(({ url }) => url === undefined || urlProblem(url) === undefined);
  const shown = fenceEach(
    usable.map(({ url, title = "", published, content }) => {
      const name = oneLine(title).replaceAll(/[[\]]/g, "\\$&");
      return [
        ...(url === undefined ? [] : [`## [${name || "no title"}](${webAddress(url)})`]),
        ...(published === undefined ? [] : dateLine(published)),
        ...(url === undefined ? [] : [""]),
        content.replaceAll(/\n{3,}/g, "\n\n").trim(),
      ].join("\n");
    }),
    maxBytes,
  );
  return { ...shown, leftOut: results.length - usable.length };
}

/** Shows files that were found with their matching lines, each in its own fence. */
export function showCodeResults(results: readonly CodeResult[], maxBytes: number): ShownResults {
  const shown = fenceEach(
    results.map(({ repo, path, url, lines }) =>
      [
        oneLine(`${repo} ${path}`),
        ...(url === undefined || urlProblem(url) !== undefined ? [] : [webAddress(url)]),
        ...lines.map(({ number, text }) => `  ${number === undefined ? "" : `Line ${number}: `}${text.trimEnd()}`),
      ].join("\n"),
    ),
    maxBytes,
  );
  return { ...shown, leftOut: 0 };
}

/** Cuts texts to their share of the maximum, and fences each. */
export function fenceEach(texts: readonly string[], maxBytes: number): Omit<ShownResults, "leftOut"> {
  const share = Math.min(maxResultBytes, Math.floor(Math.min(maxBytes, maxResultsBytes) / Math.max(texts.length, 1)));
  let isCut = false;
  const fenced = texts.map((text, index) => {
    // Escaped before it is cut, since escapes are longer.
    const whole = Buffer.from(visible(text.replaceAll(/\p{Zs}/gu, " ").replaceAll(/\r\n?/g, "\n")));
    if (whole.length > share) isCut = true;
    return fence(`result ${index + 1} of ${texts.length}`, beginning(whole, share));
  });
  return { text: fenced.join("\n\n"), shown: texts.length, isCut };
}

/** Returns the first bytes of a text, without a part of a character at the end. */
function beginning(text: Buffer, maxBytes: number): string {
  if (text.length <= maxBytes) return text.toString();
  return `${new TextDecoder().decode(text.subarray(0, maxBytes), { stream: true })} …`;
}

/** Writes an address so that it ends where a Markdown link ends. */
const webAddress = (url: string) => new URL(url).href.replaceAll("(", "%28").replaceAll(")", "%29");

const oneLine = (text: string) => text.replaceAll(/\s+/g, " ").trim().slice(0, 500);

function dateLine(date: string): string[] {
  const time = Date.parse(date);
  return Number.isNaN(time) ? [] : [`Published: ${new Date(time).toISOString()}`];
}
