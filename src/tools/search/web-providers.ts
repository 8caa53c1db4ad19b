import * as z from "zod";
import type { WebSearchName } from "../../core/search-providers.ts";
import { readToolText, toolRequest } from "./json-rpc.ts";
import { plainText } from "./plain-text.ts";
import type { SearchAdapter, SearchAnswer, WebQuery, WebResult } from "./provider.ts";

const text = z.string().nullish();

/** The adapters of the providers of web searches. */
export const webAdapters: Readonly<Record<WebSearchName, SearchAdapter<WebQuery, WebResult>>> = {
  searxng: {
    request: ({ query }) => ({
      path: "/search",
      search: { q: query, format: "json" },
      statuses: {
        403: "this SearXNG does not offer the form json. Its operator must add json to search.formats in its settings.yml, or let this service pass its bot detection.",
      },
    }),
    read: listReader(
      z.object({ results: z.array(z.object({ url: z.string(), title: text, content: text, publishedDate: text })) }),
      ({ results }) =>
        results.map(({ url, title, content, publishedDate }) => ({ url, title, content, published: publishedDate })),
    ),
  },
  exa: {
    request: ({ query, type, numResults, livecrawl, contextMaxCharacters }, key) => ({
      path: "/search",
      headers: keyHeader("x-api-key", key),
      json: { query, type, numResults, contents: { text: { maxCharacters: contextMaxCharacters }, livecrawl } },
    }),
    read: listReader(
      z.object({ results: z.array(z.object({ url: z.string(), title: text, publishedDate: text, text })) }),
      ({ results }) =>
        results.map(({ url, title, publishedDate, text }) => ({ url, title, content: text, published: publishedDate })),
    ),
  },
  brave: {
    request: ({ query, numResults }, key) => ({
      path: "/res/v1/web/search",
      search: { q: query, count: String(numResults) },
      headers: keyHeader("x-subscription-token", key),
    }),
    read: listReader(
      z.object({
        web: z
          .object({
            results: z.array(
              z.object({
                url: z.string(),
                title: text,
                description: text,
                page_age: text,
                extra_snippets: z.array(z.string()).nullish(),
              }),
            ),
          })
          .nullish(),
      }),
      ({ web }) =>
        (web?.results ?? []).map(({ url, title, description, page_age, extra_snippets }) => ({
          ...{ url, title: plainText(title ?? ""), published: page_age },
          content: [description ?? "", ...(extra_snippets ?? [])].map(plainText).join("\n"),
        })),
    ),
  },
  tavily: {
    request: ({ query, type, numResults }, key) => ({
      path: "/search",
      headers: bearer(key),
      json: { query, max_results: numResults, search_depth: type === "deep" ? "advanced" : "basic" },
    }),
    read: listReader(
      z.object({ results: z.array(z.object({ url: z.string(), title: text, content: text, published_date: text })) }),
      ({ results }) =>
        results.map(({ url, title, content, published_date }) => ({ url, title, content, published: published_date })),
    ),
  },
  "exa-mcp": {
    request: ({ query, type, numResults, livecrawl, contextMaxCharacters }, key) =>
      toolRequest(
        "web_search_exa",
        { query, type, numResults, livecrawl, contextMaxCharacters },
        keyHeader("x-api-key", key),
      ),
    read: async (answer) => blocksOf(await readToolText(answer)),
  },
  "parallel-mcp": {
    request: ({ query }, key) => toolRequest("web_search", { objective: query, search_queries: [query] }, bearer(key)),
    read: async (answer) => excerptsOf(await readToolText(answer)),
  },
};

type Found = { [Key in keyof WebResult]?: WebResult[Key] | null | undefined };

/** Makes the reader of an answer that is one JSON value. */
function listReader<T>(schema: z.ZodType<T>, select: (value: T) => Found[]) {
  return async (answer: SearchAnswer): Promise<WebResult[]> =>
    select(schema.parse(await answer.json())).map(withoutNulls);
}

function withoutNulls({ url, title, published, content }: Found): WebResult {
  return {
    url: url ?? undefined,
    title: title ?? undefined,
    published: published ?? undefined,
    content: content ?? "",
  };
}

/** Reads the text of Exa's MCP server: a block of `Title:`, `URL:` and `Text:` for each result. Other text is one result. */
function blocksOf(answer: string): WebResult[] {
  if (/^no (search )?results found/i.test(answer.trim()) || answer.trim() === "") return [];
  const blocks = answer.split(/^(?=Title: )/m).filter((block) => /^Title: .*\n(?:.+\n)*?URL: /.test(block));
  if (blocks.length === 0) return [{ content: answer }];
  return blocks.map((block) => {
    const field = (name: string) => new RegExp(`^${name}: ?(.*)$`, "m").exec(block)?.[1]?.trim();
    const [, content = ""] = /^(?:Text|Highlights):\s?([\s\S]*)/m.exec(block) ?? [];
    return {
      url: field("URL"),
      title: field("Title"),
      published: field("Published Date") ?? field("Published"),
      content,
    };
  });
}

const excerpts = z.object({
  results: z.array(
    z.object({ url: z.string(), title: text, publish_date: text, excerpts: z.array(z.string()).nullish() }),
  ),
});

/** Reads the text of Parallel's MCP server, which is JSON. Other text is one result. */
function excerptsOf(answer: string): WebResult[] {
  if (answer.trim() === "") return [];
  const { success, data } = excerpts.safeParse(jsonOf(answer));
  if (!success) return [{ content: answer }];
  return data.results.map(({ url, title, publish_date, excerpts }) =>
    withoutNulls({ url, title, published: publish_date, content: excerpts?.join("\n\n") }),
  );
}

function jsonOf(answer: string): unknown {
  try {
    return JSON.parse(answer);
  } catch {
    return undefined;
  }
}

const keyHeader = (name: string, key: string | undefined): Record<string, string> =>
  key === undefined ? {} : { [name]: key };

const bearer = (key: string | undefined) => keyHeader("authorization", key && `Bearer ${key}`);
