import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { buildPreload, diskFaults, lostWrites } from "./io/control.ts";
import type { Outcome } from "./io/work.ts";
import { isLong, report } from "./report.ts";

let folder = "";
let library = "";

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "toolgate-io-"));
  library = buildPreload(folder);
});
afterAll(() => rm(folder, { recursive: true }));

/** Works on stores with a fault of a kind at each step, or at a sample of them. */
async function workWith(kind: number, stride: number): Promise<Outcome[]> {
  const control = join(folder, `control-${kind}`);
  await writeFile(control, Buffer.alloc(16));
  const args = [join(import.meta.dirname, "io/work.ts"), folder, String(kind), "1", String(stride)];
  const env = { ...process.env, LD_PRELOAD: library, FAULT_CONTROL: control };
  const { stdout } = await promisify(execFile)(process.execPath, args, { env, maxBuffer: 100_000_000 });
  return stdout
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line));
}

test.each(diskFaults)(
  "a write or sync of the database that %s, at each step, loses nothing that was acknowledged",
  async (fault, kind) => {
    const outcomes = await workWith(kind, isLong ? 1 : 7);
    const violations = outcomes.flatMap(({ at, violations }) =>
      violations.map((violation) => `at ${at}: ${violation}`),
    );
    expect(violations).toEqual([]);
    expect(outcomes.length).toBeGreaterThan(isLong ? 40 : 5);
    const sum = (count: (outcome: Outcome) => number) => outcomes.reduce((total, outcome) => total + count(outcome), 0);
    const refused = sum((outcome) => outcome.refused);
    expect(refused).toBeGreaterThan(0);
    report({
      fault: `F8 a write or sync of the database ${fault}`,
      ...{
        faults: outcomes.length,
        calls: sum((outcome) => outcome.acknowledged + outcome.refused),
        answers: 0,
        runs: 0,
      },
      ...{ violations: violations.length, seen: `${refused} steps refused` },
    });
  },
);

test("control: a disk that loses writes is noticed", async () => {
  const outcomes = await workWith(lostWrites, 20);
  expect(outcomes.flatMap(({ violations }) => violations)).not.toEqual([]);
});
