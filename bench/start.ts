import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { cpuTime } from "./cpu-time.ts";

const root = join(import.meta.dirname, "..");

/** Prints the CPU time of short command lines, of the package and of the checkout, beside that of an empty program. */
export function measureStart(runs: number, print: (text: string) => void): void {
  run("build/package.ts");
  const programs: readonly (readonly [name: string, ...args: string[]])[] = [
    ["`node -e 0`", "-e", "0"],
    ["`toolgate --version`", "dist/main.js", "--version"],
    ["`toolgate completion bash`", "dist/main.js", "completion", "bash"],
    ["`toolgate asks --help`", "dist/main.js", "asks", "--help"],
    ["`toolgate --version` in the checkout", "src/main.ts", "--version"],
  ];
  const rows = programs.map(([name, ...args]) => {
    const before = cpuTime(process.pid);
    for (let i = 0; i < runs; i += 1) run(...args);
    return `| ${name} | ${Math.round((cpuTime(process.pid) - before) / runs / 1_000)} ms |`;
  });
  print(["| command line | CPU |", "| --- | ---: |", ...rows].join("\n"));
}

function run(...args: string[]): void {
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: ["ignore", "ignore", "inherit"] });
  if (status !== 0) throw new Error(`node ${args.join(" ")} ended with ${status}`);
}
