import type { IncomingMessage } from "node:http";
import type { RemoteSearch } from "../../core/search-providers.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { Judge } from "../../tool/tool.ts";
import { type AddressJudge, bodyOf, eventsOf, exchange } from "../web/exchange.ts";
import type { SearchAdapter, SearchAnswer, SearchRequest } from "./provider.ts";

/** A search by a configured provider, for errors and rules. */
export interface ProviderSearch {
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
