import { diffArrays, FILE_HEADERS_ONLY, formatPatch, type StructuredPatchHunk } from "diff";

/** Larger changes are shown as everything before and everything after. */
const maxCharacters = 4_194_304;
const maxLines = 200_000;

/** The difference of two versions of a file. */
export interface FileChange {
  /** A unified diff, or one line with the reason why there is none. */
  diff: string;
  additions: number;
  deletions: number;
}

/**
 * Compares two versions of a file, in a bounded number of steps; `before` is absent for a new file, and its text is `undefined`
 * if it is too large to read. The diff always holds the whole new version of what changes.
 */
export function compare(name: string, before: { text: string | undefined } | undefined, after: string): FileChange {
  const old = before === undefined ? "" : before.text;
  if (old === undefined) return replacement(after);
  if (old === after) return { diff: "", additions: 0, deletions: 0 };
  const { start, end, skipped } = changedPart(old, after);
  const [oldLines, newLines] = [
    linesWithEnds(old.slice(start, old.length - end)),
    linesWithEnds(after.slice(start, after.length - end)),
  ];
  const isLarge = old.length + after.length - 2 * (start + end) > maxCharacters;
  const runs =
    isLarge || oldLines.length + newLines.length > maxLines
      ? beforeAndAfter(oldLines, newLines)
      : compareLines(oldLines, newLines);
  const count = (wanted: LineRun["kind"]) =>
    runs.reduce((sum, { kind, count }) => sum + (kind === wanted ? count : 0), 0);
  const names = { oldFileName: before === undefined ? "/dev/null" : name, newFileName: name };
  const patch = {
    ...names,
    oldHeader: undefined,
    newHeader: undefined,
    hunks: hunksOf(runs, oldLines, newLines, skipped),
  };
  return {
    diff: formatPatch(patch, FILE_HEADERS_ONLY),
    additions: count("added"),
    deletions: count("removed"),
  };
}

/** Splits a text behind each line end. */
export function linesWithEnds(text: string): string[] {
  const lines: string[] = [];
  for (let at = 0; at < text.length; ) {
    const newline = text.indexOf("\n", at);
    const next = newline === -1 ? text.length : newline + 1;
    lines.push(text.slice(at, next));
    at = next;
  }
  return lines;
}

function beforeAndAfter(old: readonly string[], fresh: readonly string[]): LineRun[] {
  const runs: LineRun[] = [
    { kind: "removed", count: old.length },
    { kind: "added", count: fresh.length },
  ];
  return runs.filter(({ count }) => count > 0);
}

/** Groups runs into hunks, each with its context; `skipped` lines precede the first run. */
function hunksOf(
  runs: readonly LineRun[],
  old: readonly string[],
  fresh: readonly string[],
  skipped: number,
): StructuredPatchHunk[] {
  const hunks: StructuredPatchHunk[] = [];
  let [a, b] = [0, 0];
  let hunk: StructuredPatchHunk | undefined;
  const take = (sign: string, line = "") => {
    const hasEnd = line.endsWith("\n");
    hunk?.lines.push(sign + (hasEnd ? line.slice(0, -1) : line));
    if (!hasEnd) hunk?.lines.push("\\ No newline at end of file");
  };
  const takeSame = (count: number) => {
    for (let i = 0; i < count; i++, a++, b++) take(" ", old[a]);
  };
  const close = () => {
    if (hunk === undefined) return;
    hunk.oldLines = skipped + a + 1 - hunk.oldStart;
    hunk.newLines = skipped + b + 1 - hunk.newStart;
    hunks.push(hunk);
    hunk = undefined;
  };
  for (const [i, { kind, count }] of runs.entries()) {
    if (kind !== "same") {
      if (hunk === undefined) {
        const context = Math.min(contextLines, a, b);
        a -= context;
        b -= context;
        hunk = { oldStart: skipped + a + 1, newStart: skipped + b + 1, oldLines: 0, newLines: 0, lines: [] };
        takeSame(context);
      }
      for (let n = 0; n < count; n++) kind === "added" ? take("+", fresh[b++]) : take("-", old[a++]);
    } else if (hunk !== undefined && count <= 2 * contextLines && i < runs.length - 1) {
      takeSame(count);
    } else {
      const context = hunk === undefined ? 0 : Math.min(contextLines, count);
      takeSame(context);
      close();
      a += count - context;
      b += count - context;
    }
  }
  close();
  return hunks;
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

function replacement(after: string): FileChange {
  const additions = countLines(after);
  const diff = `(No diff, because it is too large to read: the whole file will be replaced by ${additions} lines.)`;
  return { diff, additions, deletions: 0 };
}

function countLines(text: string): number {
  let lines = text === "" || text.endsWith("\n") ? 0 : 1;
  for (let at = text.indexOf("\n"); at !== -1; at = text.indexOf("\n", at + 1)) lines += 1;
  return lines;
}

/** A run of lines that two versions share, or that one of them has alone. */
interface LineRun {
  kind: "same" | "removed" | "added";
  /** The number of lines. */
  count: number;
}

/** Steps that the search for the shortest difference may take; what it does not find in time, anchors do. */
const maxSteps = 4_000_000;
const maxEdits = 1_000;
/** Nested searches for anchors. Each is linear in the lines that are left. */
const maxDepth = 8;

/**
 * Compares two versions line by line, in a number of steps that depends on their lengths only. The difference is the shortest
 * one if the versions are similar; otherwise it is found between lines that occur once in both (patience), and what has no
 * such line is replaced as a whole.
 */
function compareLines(before: readonly string[], after: readonly string[]): LineRun[] {
  const numbers = new Map<string, number>();
  const numbered = (lines: readonly string[]) => lines.map((line) => numberOf(numbers, line));
  const [old, fresh] = [numbered(before), numbered(after)];
  const shortest = search(old, fresh, editsFor(old.length + fresh.length));
  if (shortest !== undefined) return shortest;
  const runs: LineRun[] = [];
  compareByAnchors(old, fresh, editsFor(old.length + fresh.length) >> 2, 0, (kind, count) => addRun(runs, kind, count));
  return runs;
}

function numberOf(numbers: Map<string, number>, line: string): number {
  const known = numbers.get(line);
  if (known !== undefined) return known;
  numbers.set(line, numbers.size);
  return numbers.size - 1;
}

/** Each edit looks at every line at most twice. */
function editsFor(lines: number): number {
  return Math.min(maxEdits, Math.floor(maxSteps / Math.max(1, lines)));
}

/** Finds the shortest difference; undefined if it has more edits. */
function search(old: readonly number[], fresh: readonly number[], maxEditLength: number): LineRun[] | undefined {
  const runs = diffArrays([...old], [...fresh], { maxEditLength });
  return runs?.map(({ added, removed, count }) => ({ kind: added ? "added" : removed ? "removed" : "same", count }));
}

type Emit = (kind: LineRun["kind"], count: number) => void;

function compareByAnchors(
  old: readonly number[],
  fresh: readonly number[],
  edits: number,
  depth: number,
  emit: Emit,
): void {
  let start = 0;
  while (start < old.length && start < fresh.length && old[start] === fresh[start]) start += 1;
  let end = 0;
  const most = Math.min(old.length, fresh.length) - start;
  while (end < most && old[old.length - 1 - end] === fresh[fresh.length - 1 - end]) end += 1;
  emit("same", start);
  between(old.slice(start, old.length - end), fresh.slice(start, fresh.length - end), edits, depth, emit);
  emit("same", end);
}

function between(old: readonly number[], fresh: readonly number[], edits: number, depth: number, emit: Emit): void {
  const replace = () => {
    emit("removed", old.length);
    emit("added", fresh.length);
  };
  if (old.length === 0 || fresh.length === 0) {
    replace();
    return;
  }
  const found = depth > 0 ? search(old, fresh, edits) : undefined;
  if (found !== undefined) {
    for (const { kind, count } of found) emit(kind, count);
    return;
  }
  const anchors = depth < maxDepth ? anchorsOf(old, fresh) : [];
  if (anchors.length === 0) {
    replace();
    return;
  }
  let [a, b] = [0, 0];
  for (const [left, right] of anchors) {
    compareByAnchors(old.slice(a, left), fresh.slice(b, right), edits, depth + 1, emit);
    emit("same", 1);
    [a, b] = [left + 1, right + 1];
  }
  compareByAnchors(old.slice(a), fresh.slice(b), edits, depth + 1, emit);
}

/** The places of lines that occur once in both versions, as many as have the same order in both. */
function anchorsOf(old: readonly number[], fresh: readonly number[]): [number, number][] {
  const [left, right] = [placesOf(old), placesOf(fresh)];
  const pairs = [...left].flatMap(([line, a]): [number, number][] => {
    const b = right.get(line);
    return a === repeated || b === undefined || b === repeated ? [] : [[a, b]];
  });
  // The pairs are in the order of the old version: the longest increasing sequence of the new places remains.
  const ends: number[] = [];
  const previous: number[] = [];
  for (const [i, [, place]] of pairs.entries()) {
    let [low, high] = [0, ends.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((pairs[ends[middle] ?? 0]?.[1] ?? 0) < place) low = middle + 1;
      else high = middle;
    }
    previous[i] = ends[low - 1] ?? -1;
    ends[low] = i;
  }
  const chosen: [number, number][] = [];
  for (let i = ends.at(-1) ?? -1; i >= 0; i = previous[i] ?? -1) {
    const pair = pairs[i];
    if (pair !== undefined) chosen.push(pair);
  }
  return chosen.reverse();
}

const repeated = -1;

/** The place of each line, in the order of their first places; `repeated` if it occurs again. */
function placesOf(lines: readonly number[]): Map<number, number> {
  const places = new Map<number, number>();
  for (const [i, line] of lines.entries()) places.set(line, places.has(line) ? repeated : i);
  return places;
}

function addRun(runs: LineRun[], kind: LineRun["kind"], count: number): void {
  const last = runs.at(-1);
  if (count === 0) return;
  if (last?.kind === kind) last.count += count;
  else runs.push({ kind, count });
}
