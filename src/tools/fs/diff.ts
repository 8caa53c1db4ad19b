import { FILE_HEADERS_ONLY, formatPatch, structuredPatch } from "diff";

const maxCharacters = 1_048_576;
const maxMs = 250;

/** The difference of two versions of a file. */
export interface FileChange {
  /** A unified diff, or one line with the reason why there is none. */
  diff: string;
  additions: number;
  deletions: number;
}

/** Compares two versions of a file, in bounded time; `before` is absent for a new file, and `undefined` texts are too large to compare. */
export function compare(name: string, before: { text: string | undefined } | undefined, after: string): FileChange {
  const old = before === undefined ? "" : before.text;
  if (old === undefined) return replacement(old, after, "it is too large");
  const { start, end, skipped } = changedPart(old, after);
  const [oldPart, newPart] = [old.slice(start, old.length - end), after.slice(start, after.length - end)];
  if (oldPart.length + newPart.length > maxCharacters) return replacement(old, after, "it is too large");
  const patch = structuredPatch(
    before === undefined ? "/dev/null" : name,
    name,
    oldPart,
    newPart,
    undefined,
    undefined,
    {
      timeout: maxMs,
    },
  );
  if (patch === undefined) return replacement(old, after, "the versions differ too much");
  for (const hunk of patch.hunks) {
    hunk.oldStart += skipped;
    hunk.newStart += skipped;
  }
  const lines = patch.hunks.flatMap((hunk) => hunk.lines);
  return {
    diff: patch.hunks.length === 0 ? "" : formatPatch(patch, FILE_HEADERS_ONLY),
    additions: lines.filter((line) => line.startsWith("+")).length,
    deletions: lines.filter((line) => line.startsWith("-")).length,
  };
}

const contextLines = 4;

/** Finds the part in which two texts differ, with context lines: equal characters before and after it, and lines before it. */
function changedPart(old: string, after: string): { start: number; end: number; skipped: number } {
  let start = sameStart(old, after);
  const end = sameEnd(old, after, Math.min(old.length, after.length) - start);
  for (let i = 0; i <= contextLines && start > 0; i++) start = old.lastIndexOf("\n", start - 2) + 1;
  let tail = old.length - end;
  for (let i = 0; i <= contextLines && tail < old.length; i++) {
    const newline = old.indexOf("\n", tail);
    tail = newline === -1 ? old.length : newline + 1;
  }
  return { start, end: old.length - tail, skipped: countLines(old.slice(0, start)) };
}

/** Sizes of the blocks that are compared at once, down to single characters. */
const blocks = [4_096, 256, 16, 1];

function sameStart(a: string, b: string): number {
  const max = Math.min(a.length, b.length);
  let at = 0;
  for (const block of blocks)
    while (at + block <= max && a.slice(at, at + block) === b.slice(at, at + block)) at += block;
  return at;
}

function sameEnd(a: string, b: string, max: number): number {
  let back = 0;
  for (const block of blocks) {
    const part = (text: string) => text.slice(text.length - back - block, text.length - back);
    while (back + block <= max && part(a) === part(b)) back += block;
  }
  return back;
}

function replacement(old: string | undefined, after: string, why: string): FileChange {
  const additions = countLines(after);
  const deletions = old === undefined ? 0 : countLines(old);
  const all = old === undefined ? "the whole file" : `${deletions} lines`;
  return { diff: `(No diff, because ${why}: ${all} will be replaced by ${additions} lines.)`, additions, deletions };
}

function countLines(text: string): number {
  let lines = text === "" || text.endsWith("\n") ? 0 : 1;
  for (let at = text.indexOf("\n"); at !== -1; at = text.indexOf("\n", at + 1)) lines += 1;
  return lines;
}
