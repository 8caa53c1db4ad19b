import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { cpuTime } from "./cpu-time.ts";
import type { Goal } from "./goals.ts";
import { spread, table } from "./report.ts";
import { ratios } from "./rounds.ts";

const root = join(import.meta.dirname, "..");
/** Runs of a command line in each round: the kernel counts CPU time in steps of 10 ms. */
const times = 5;

/** Prints the CPU time of short command lines, of the package and of the checkout, beside that of an empty program, in turn. */
export function measureStart(rounds: number, print: (text: string) => void): Goal[] {
  run("build/package.ts");
  const programs = Object.entries({
    "`node -e 0`": ["-e", "0"],
    "`node -e 0`, the control": ["-e", "0"],
    "`toolgate --version`": ["dist/main.js", "--version"],
    "`toolgate completion bash`": ["dist/main.js", "completion", "bash"],
    "`toolgate asks --help`": ["dist/main.js", "asks", "--help"],
    "`toolgate --version` in the checkout": ["src/main.ts", "--version"],
  }).map(([name, args]) => ({ name, args, ms: [] as number[] }));
  for (let round = 0; round < rounds; round += 1)
    for (const { args, ms } of round % 2 === 0 ? programs : programs.toReversed()) {
      const before = cpuTime(process.pid);
      for (let i = 0; i < times; i += 1) run(...args);
      ms.push((cpuTime(process.pid) - before) / times / 1_000);
    }
  print(
    table(
      ["command line", "CPU, ms"],
      programs.map(({ name, ms }) => [name, spread(ms)]),
    ),
  );
  const of = (wanted: string) => programs.find(({ name }) => name === wanted)?.ms ?? [];
  const bare = of("`node -e 0`");
  return [
    {
      ...{ figure: "`toolgate asks --help` ÷ `node -e 0`, CPU", limit: 4, unit: "×" },
      values: ratios(of("`toolgate asks --help`"), bare),
      control: ratios(of("`node -e 0`, the control"), bare),
    },
  ];
}

function run(...args: string[]): void {
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: ["ignore", "ignore", "inherit"] });
  if (status !== 0) throw new Error(`node ${args.join(" ")} ended with ${status}`);
}
