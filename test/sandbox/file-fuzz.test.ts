import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { random } from "../policy/shell/lines.ts";
import { seed } from "../seed.ts";
import { fileLineMaker } from "./file-lines.ts";
import { type Fault, openTrials, type Trial, type Trials } from "./file-trials.ts";

/** Lines for each of the two laws. */
const lawLines = process.env.TOOLGATE_LONG === "1" ? 50_000 : 80;
const timeout = process.env.TOOLGATE_LONG === "1" ? 3 * 3_600_000 : 600_000;
const batch = 20;
/** Only a fault that trials cannot notice takes so many. */
const maxLines = 2_000;

/** Offences of a line: it reads or changes what rules deny; it prints what only git's objects hold, although it was allowed. */
const isBroken = ({ read, changed, isAllowed, printedPast }: Trial) =>
  read.length > 0 || changed.length > 0 || (isAllowed && printedPast);

/** Runs lines until one breaks the law, or as many as wanted; returns that one, and how many were allowed. */
async function firstBroken(trials: Trials, wanted: number, fault?: Fault) {
  const make = fileLineMaker(random(seed));
  const counts = { lines: 0, allowed: 0 };
  while (counts.lines < wanted) {
    const tried = await trials.run(Array.from({ length: batch }, make), fault);
    counts.lines += tried.length;
    counts.allowed += tried.filter(({ isAllowed }) => isAllowed).length;
    const broken = tried.find(isBroken);
    if (broken) return { broken, ...counts };
  }
  return { broken: undefined, ...counts };
}

describe.each([
  [false, "without a sandbox, of the lines that the analysis allows, none reads or changes", ["analysis of reads"]],
  [true, "behind the masks none reads or changes", ["masks", "analysis of reads"]],
] as const)(`with TOOLGATE_SEED=${seed}`, (isConfined, law, faults) => {
  let trials: Trials;
  beforeAll(async () => {
    trials = await openTrials({ isConfined });
  });
  afterAll(() => trials.close());

  test(`${law} a file that rules deny`, { timeout }, async () => {
    const { broken, lines, allowed } = await firstBroken(trials, lawLines);
    console.log(`${lines} lines, of which ${allowed} are allowed, with TOOLGATE_SEED=${seed}`);
    expect(broken).toBeUndefined();
    expect(allowed).toBeGreaterThan(0);
  });

  test.each(faults)("trials notice a service without its %s", { timeout: 600_000 }, async (fault) => {
    expect((await firstBroken(trials, maxLines, fault)).broken).toBeDefined();
  });
});
