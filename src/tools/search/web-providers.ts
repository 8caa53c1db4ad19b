import * as z from "zod";
import type { WebSearchName } from "../../core/search-providers.ts";
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

const keyHeader = (name: string, key: string | undefined): Record<string, string> =>
  key === undefined ? {} : { [name]: key };

/** Removes the tags of a piece of HTML and decodes its entities. The result is untrusted text, not HTML. */
function plainText(html: string): string {
  return html
    .replaceAll(/<[^>]{0,1000}>/g, "")
    .replaceAll(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|(\w{2,8}));/gi, (whole, decimal, hex, name) => {
      if (name !== undefined) return entities[name] ?? whole;
      const code = decimal === undefined ? Number.parseInt(hex, 16) : Number(decimal);
      return code <= 0x10ffff ? String.fromCodePoint(code) : whole;
    });
}

const entities: Readonly<Record<string, string>> = {
  ...{ lt: "<", gt: ">", amp: "&", quot: '"', apos: "'", nbsp: " " },
};
