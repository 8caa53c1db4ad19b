import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { random } from "../policy/shell/lines.ts";
import { seed } from "../seed.ts";
import { fileLineMaker } from "./file-lines.ts";
import { type Fault, openTrials, type Trial, type Trials } from "./file-trials.ts";

/** Time for each of the two laws. */
const fuzzMs = process.env.TOOLGATE_LONG === "1" ? 1_800_000 : 25_000;
const batch = 20;
/** Only a fault that trials cannot notice takes so many. */
const maxLines = 2_000;

/** What a line may not do: read or change what rules deny; print what only git's objects hold, if it was allowed. */
const isBroken = ({ read, changed, isAllowed, printedPast }: Trial) =>
  read.length > 0 || changed.length > 0 || (isAllowed && printedPast);

/** Runs lines until one breaks the law, or as long as `goesOn` says; returns that one, and how many were allowed. */
async function firstBroken(trials: Trials, goesOn: (lines: number) => boolean, fault?: Fault) {
  const make = fileLineMaker(random(seed));
  const counts = { lines: 0, allowed: 0 };
  while (goesOn(counts.lines)) {
    const tried = await trials.run(Array.from({ length: batch }, make), fault);
    counts.lines += tried.length;
    counts.allowed += tried.filter(({ isAllowed }) => isAllowed).length;
    const broken = tried.find(isBroken);
    if (broken) return { broken, ...counts };
  }
  return { broken: undefined, ...counts };
}

const during = (ms: number) => {
  const until = Date.now() + ms;
  return () => Date.now() < until;
};

describe.each([
  [false, "without a sandbox, of the lines that the analysis allows, none reads or changes", ["analysis of reads"]],
  [true, "behind the masks none reads or changes", ["masks", "analysis of reads"]],
] as const)(`with TOOLGATE_SEED=${seed}`, (isConfined, law, faults) => {
  let trials: Trials;
  beforeAll(async () => {
    trials = await openTrials({ isConfined });
  });
  afterAll(() => trials.close());

  test(`${law} a file that rules deny`, { timeout: 2 * fuzzMs + 300_000 }, async () => {
    const { broken, lines, allowed } = await firstBroken(trials, during(fuzzMs));
    console.log(`${lines} lines, of which ${allowed} are allowed, with TOOLGATE_SEED=${seed}`);
    expect(broken).toBeUndefined();
    expect(allowed).toBeGreaterThan(0);
  });

  test.each(faults)("trials notice a service without its %s", { timeout: 600_000 }, async (fault) => {
    expect((await firstBroken(trials, (lines) => lines < maxLines, fault)).broken).toBeDefined();
  });
});
