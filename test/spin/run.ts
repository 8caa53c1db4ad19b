import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { needPrograms } from "../programs.ts";

// npm run test:spin [-- --long]: all runs of the model of a worker's call with one fault, or with --long with two; then its controls.
const { values } = parseArgs({ options: { long: { type: "boolean", default: false } } });

/** Mistakes of an implementation, and the promise that each breaks. */
const controls = {
  STALE_READ: "entered<=1",
  NO_MARK: "entered<=1",
  EARLY_ACK: "entered<=1",
  NO_FENCE: "finals<=1",
} as const;

needPrograms([
  ["spin", "spin"],
  ["gcc", "gcc"],
]);
const directory = mkdtempSync(join(tmpdir(), "toolgate-spin-"));
try {
  const faults = values.long ? 2 : 1;
  const report = check(faults, []);
  if (!/errors: 0$/m.test(report)) throw new Error(`the model of workers breaks a promise:\n${report}`);
  console.log(`workers: ${/(\d+) states, stored/.exec(report)?.[1]} states with ${faults} faults, no error`);
  for (const [mistake, promise] of Object.entries(controls)) {
    if (!check(1, [mistake]).includes(`assertion violated (${promise})`))
      throw new Error(`the model does not notice ${mistake}: no run breaks ${promise}`);
    console.log(`workers: with ${mistake} a run breaks ${promise}`);
  }
} finally {
  rmSync(directory, { recursive: true, force: true });
}

/** Checks all runs of the model; returns spin's report, with every error. */
function check(faults: number, switches: readonly string[]): string {
  const run = (program: string, args: readonly string[]) =>
    execFileSync(program, args, { cwd: directory, encoding: "utf8", maxBuffer: 64 * 1024 * 1024 });
  const model = join(import.meta.dirname, "worker.pml");
  run("spin", [`-DFAULTS=${faults}`, ...switches.map((name) => `-D${name}`), "-a", model]);
  run("gcc", ["-O1", "-w", "-DSAFETY", "-o", "pan", "pan.c"]);
  return run("./pan", ["-m200000", "-c0"]);
}
