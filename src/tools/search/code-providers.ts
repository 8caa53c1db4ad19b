import * as z from "zod";
import type { CodeSearchName } from "../../core/search-providers.ts";
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
