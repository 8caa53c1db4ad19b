import { FILE_HEADERS_ONLY, formatPatch, structuredPatch } from "diff";

const maxCharacters = 1_048_576;
const maxMs = 250;

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

/** Where two texts differ, with the lines around it: how many characters before and behind are the same, and how many lines before. */
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

/** So many characters are compared at once, then fewer, down to the one that differs. */
const blocks = [4_096, 256, 16, 1];

function sameStart(a: string, b: string): number {
  const most = Math.min(a.length, b.length);
  let at = 0;
  for (const block of blocks)
    while (at + block <= most && a.slice(at, at + block) === b.slice(at, at + block)) at += block;
  return at;
}

function sameEnd(a: string, b: string, most: number): number {
  let back = 0;
  for (const block of blocks) {
    const part = (text: string) => text.slice(text.length - back - block, text.length - back);
    while (back + block <= most && part(a) === part(b)) back += block;
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
