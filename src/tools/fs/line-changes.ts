import { diffArrays } from "diff";

/** A run of lines that two versions share, or that one of them has alone. */
export interface LineRun {
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
export function compareLines(before: readonly string[], after: readonly string[]): LineRun[] {
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
