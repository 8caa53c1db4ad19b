import { FILE_HEADERS_ONLY, formatPatch, structuredPatch } from "diff";

const mostCharacters = 1_048_576;
const longestMs = 250;

/** How a file will differ. */
export interface FileChange {
  /** A unified diff, or one line that says why there is none. */
  diff: string;
  additions: number;
  deletions: number;
}

/** Compares two versions of a file, in bounded time; `before` is absent for a new file, and `undefined` texts are too large to compare. */
export function compare(name: string, before: { text: string | undefined } | undefined, after: string): FileChange {
  const old = before === undefined ? "" : before.text;
  if (old === undefined || old.length + after.length > mostCharacters)
    return replacement(old, after, "it is too large");
  const patch = structuredPatch(before === undefined ? "/dev/null" : name, name, old, after, undefined, undefined, {
    timeout: longestMs,
  });
  if (patch === undefined) return replacement(old, after, "the versions differ too much");
  const lines = patch.hunks.flatMap((hunk) => hunk.lines);
  return {
    diff: patch.hunks.length === 0 ? "" : formatPatch(patch, FILE_HEADERS_ONLY),
    additions: lines.filter((line) => line.startsWith("+")).length,
    deletions: lines.filter((line) => line.startsWith("-")).length,
  };
}

function replacement(old: string | undefined, after: string, why: string): FileChange {
  const additions = countLines(after);
  const deletions = old === undefined ? 0 : countLines(old);
  const all = old === undefined ? "the whole file" : `${deletions} lines`;
  return { diff: `(No diff, because ${why}: ${all} will be replaced by ${additions} lines.)`, additions, deletions };
}

const countLines = (text: string) => text.split("\n").length - (text.endsWith("\n") || text === "" ? 1 : 0);
