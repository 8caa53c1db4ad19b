import * as z from "zod";
import type { CodeSearchName } from "../../core/search-providers.ts";
import { plainText } from "./plain-text.ts";
import type { CodeQuery, CodeResult, SearchAdapter, SearchAnswer } from "./provider.ts";

const maxFiles = 50;

/** The adapters of the remote providers of code searches. */
export const codeAdapters: Readonly<Record<CodeSearchName, SearchAdapter<CodeQuery, CodeResult>>> = {
  sourcegraph: {
    request: (query, key) => ({
      path: "/.api/search/stream",
      search: { q: sourcegraphQuery(query), v: "V3", display: String(maxFiles), "max-line-len": "500" },
      headers: { accept: "text/event-stream", ...(key !== undefined && { authorization: `token ${key}` }) },
    }),
    read: readSourcegraph,
  },
  "grep.app": {
    request: ({ query, useRegexp, language, repo, path }) => ({
      path: "/api/search",
      search: {
        q: query,
        ...(useRegexp && { regexp: "true" }),
        ...(language.length > 0 && { "f.lang": language.join(",") }),
        ...(repo !== undefined && { "f.repo": repo }),
        ...(path !== undefined && { "f.path": path }),
      },
    }),
    read: readGrepApp,
  },
  zoekt: {
    request: (query) => ({ path: "/search", search: { q: zoektQuery(query), num: String(maxFiles), format: "json" } }),
    read: readZoekt,
  },
};

/** Each value is quoted, so that no text of the query becomes a filter. */
function sourcegraphQuery({ query, useRegexp, language, repo, path }: CodeQuery): string {
  return [
    `patternType:${useRegexp ? "regexp" : "literal"} type:file count:${maxFiles}`,
    ...(language.length > 0 ? [`lang:${quoted(language.map(escaped).join("|"))}`] : []),
    ...(repo === undefined ? [] : [`repo:${quoted(escaped(repo))}`]),
    ...(path === undefined ? [] : [`file:${quoted(escaped(path))}`]),
    `content:${quoted(query)}`,
  ].join(" ");
}

/** Zoekt reads every pattern as a regular expression. */
function zoektQuery({ query, useRegexp, language, repo, path }: CodeQuery): string {
  const languages = language.map((name) => `lang:${quoted(name)}`);
  return [
    ...(languages.length > 1 ? [`(${languages.join(" or ")})`] : languages),
    ...(repo === undefined ? [] : [`repo:${quoted(escaped(repo))}`]),
    ...(path === undefined ? [] : [`file:${quoted(escaped(path))}`]),
    `content:${quoted(useRegexp ? query : escaped(query))}`,
  ].join(" ");
}

const quoted = (text: string) => `"${text.replaceAll(/["\\]/g, "\\$&")}"`;

/** Escapes a text for a regular expression of the usual syntaxes. */
export const escaped = (text: string) => text.replaceAll(/[\\^$.*+?()[\]{}|]/g, "\\$&");

const line = z.object({ line: z.string(), lineNumber: z.number() });
const chunk = z.object({ content: z.string(), contentStart: z.object({ line: z.number() }) });
const matches = z.array(
  z.object({
    type: z.string(),
    repository: z.string().nullish(),
    path: z.string().nullish(),
    lineMatches: z.array(line).nullish(),
    chunkMatches: z.array(chunk).nullish(),
  }),
);

async function readSourcegraph(answer: SearchAnswer): Promise<CodeResult[]> {
  const results: CodeResult[] = [];
  for await (const { event, data } of answer.events()) {
    if (event === "done") return results;
    if (event === "error") throw new Error("the stream reports an error");
    if (event !== "matches") continue;
    for (const { type, repository, path, lineMatches, chunkMatches } of matches.parse(JSON.parse(data))) {
      if (type !== "content" || !repository || !path) continue;
      const lines = (lineMatches ?? []).map(({ line, lineNumber }) => ({ number: lineNumber + 1, text: line }));
      const chunks = (chunkMatches ?? []).flatMap(({ content, contentStart }) =>
        content.split("\n").map((text, index) => ({ number: contentStart.line + index + 1, text })),
      );
      results.push({ repo: repository, path, lines: [...lines, ...chunks] });
    }
  }
  throw new Error("the stream ended before the search was done");
}

const raw = z.union([z.string(), z.object({ raw: z.string() }).transform(({ raw }) => raw)]);
const grepApp = z.object({
  hits: z.object({
    hits: z.array(
      z.object({ repo: raw, path: raw, branch: raw.nullish(), content: z.object({ snippet: z.string() }) }),
    ),
  }),
});

async function readGrepApp(answer: SearchAnswer): Promise<CodeResult[]> {
  const { hits } = grepApp.parse(await answer.json()).hits;
  return hits.map(({ repo, path, branch, content }) => ({
    repo,
    path,
    url: `https://github.com/${repo}/blob/${branch || "HEAD"}/${path}`,
    lines: content.snippet
      .split(/<\/tr>|\n/)
      .map((row) => ({ number: lineNumber(row), text: plainText(row.replace(numberCell, "")) }))
      .filter(({ text }) => text.trim() !== ""),
  }));
}

/** The cell of a row of a snippet that holds the number of the line. */
const numberCell = /<(div|td)[^>]*class="lineno"[^>]*>.*?<\/\1>/;

function lineNumber(row: string): number | undefined {
  const [, number] = /data-line="(\d{1,9})"/.exec(row) ?? /class="lineno"[^>]*>(\d{1,9})</.exec(row) ?? [];
  return number === undefined ? undefined : Number(number);
}

const fragment = z.object({ Pre: z.string().nullish(), Match: z.string().nullish(), Post: z.string().nullish() });
const zoekt = z.object({
  result: z.object({
    FileMatches: z
      .array(
        z.object({
          Repo: z.string(),
          FileName: z.string(),
          URL: z.string().nullish(),
          Matches: z.array(z.object({ LineNum: z.number(), Fragments: z.array(fragment).nullish() })).nullish(),
        }),
      )
      .nullish(),
  }),
});

async function readZoekt(answer: SearchAnswer): Promise<CodeResult[]> {
  const { FileMatches } = zoekt.parse(await answer.json()).result;
  return (FileMatches ?? []).map(({ Repo, FileName, URL: url, Matches }) => ({
    repo: Repo,
    path: FileName,
    url: url || undefined,
    lines: (Matches ?? []).map(({ LineNum, Fragments }) => ({
      number: LineNum,
      text: (Fragments ?? []).map(({ Pre, Match, Post }) => `${Pre ?? ""}${Match ?? ""}${Post ?? ""}`).join(""),
    })),
  }));
}
