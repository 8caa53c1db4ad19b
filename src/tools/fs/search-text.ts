import { ToolFailure } from "../../tool/errors.ts";

/** Takes steps from those that the searches of one change have. Throws `ToolFailure` when none are left. */
export type SearchSteps = (count: number) => void;

/** Each compares about one character; a search runs on the thread that serves all calls. */
const maxSteps = 100_000_000;
/** Steps that a line takes in addition to its characters. */
export const stepsOfLine = 30;
/** Steps of a native search, and the characters that it searches in one step. */
const [stepsOfJump, charactersOfStep] = [10, 16];
const maxHeadLength = 8;
const maxPlaces = 1_000_000;
const maxLines = 1_000_000;

/** Creates the steps of one change. */
export function createSearchSteps(): SearchSteps {
  let left = maxSteps;
  return (count) => {
    left -= count;
    if (left < 0)
      throw new ToolFailure("To find the places of this change takes too long. Make fewer changes in one call.");
  };
}

/** Finds at most `max` places of a text in another one, overlapping ones included. */
export function findText(text: string, wanted: string, steps: SearchSteps, max?: number): number[] {
  // A native search for all of it may look at each character of it at each place.
  const head = wanted.slice(0, maxHeadLength);
  const searched = { length: text.length, itemAt: (i: number) => text.charCodeAt(i) };
  const run = Int32Array.from({ length: wanted.length }, (_, i) => wanted.charCodeAt(i));
  return findRun({ ...searched, jump: (at) => text.indexOf(head, at) }, run, { from: 0, steps, max });
}

/** A form in which lines are compared. */
export type LineForm = (line: string) => string;

/** Finds runs of lines that equal the wanted ones in a form, from a line on, overlapping ones included. */
export type FindLines = (wanted: readonly string[], form: LineForm, from?: number) => number[];

/** Creates the search in lines, which compares numbers: lines that are equal in a form have the same one. */
export function createLineSearch(path: string, lines: readonly string[], steps: SearchSteps): FindLines {
  if (lines.length > maxLines)
    throw new ToolFailure(`${path} has over ${maxLines} lines, too many to compare. Change it by a command.`);
  const known = new Map<LineForm, { numbers: Map<string, number>; numbered: Int32Array }>();
  function numberedBy(form: LineForm) {
    const numbers = new Map<string, number>();
    const numbered = Int32Array.from(lines, (line, i) => {
      steps(line.length + stepsOfLine);
      const formed = form(line);
      const number = numbers.get(formed) ?? i;
      if (number === i) numbers.set(formed, i);
      return number;
    });
    return { numbers, numbered };
  }
  return (wanted, form, from = 0) => {
    const { numbers, numbered } = known.get(form) ?? numberedBy(form);
    known.set(form, { numbers, numbered });
    const run = Int32Array.from(wanted, (line) => numbers.get(form(line)) ?? -1);
    const [first = -1] = run;
    const searched = { length: lines.length, itemAt: (i: number) => numbered[i] ?? -1 };
    if (run.includes(-1)) return [];
    return findRun({ ...searched, jump: (at) => numbered.indexOf(first, at) }, run, { from, steps });
  };
}

/** Items in which a run of them is searched. */
interface Searched {
  length: number;
  itemAt(index: number): number;
  /** Finds the next place at which the run may begin, or -1. */
  jump(from: number): number;
}

/** Finds a run of items by the algorithm of Knuth, Morris and Pratt, which looks at each item about once. */
function findRun(
  items: Searched,
  run: Int32Array,
  { from, steps, max }: { from: number; steps: SearchSteps; max?: number | undefined },
): number[] {
  steps(run.length + Math.ceil((items.length - from) / charactersOfStep));
  /** For each beginning of the run, the length of the longest shorter one with which it ends. */
  const borders = new Int32Array(run.length);
  const follow = (begun: number, item: number | undefined): number => {
    let length = begun;
    while (length > 0 && run[length] !== item) length = borders[length - 1] ?? 0;
    return run[length] === item ? length + 1 : length;
  };
  for (let i = 1; i < run.length; i++) borders[i] = follow(borders[i - 1] ?? 0, run[i]);
  const places: number[] = [];
  let [length, taken] = [0, 0];
  for (let i = from; i < items.length && places.length !== max; i++) {
    if (length === 0) {
      const next = items.jump(i);
      if (next === -1) break;
      i = next;
      taken += stepsOfJump;
    }
    taken += 1;
    length = follow(length, items.itemAt(i));
    if (length < run.length) continue;
    if (places.length === maxPlaces)
      throw new ToolFailure(`The text occurs in over ${maxPlaces} places. Provide more surrounding context.`);
    places.push(i + 1 - length);
  }
  steps(taken);
  return places;
}
