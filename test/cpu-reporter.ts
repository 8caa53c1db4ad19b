import type { Reporter, TestModule } from "vitest/node";
import { cpuTime } from "../bench/cpu-time.ts";

/** Prints, as the last line of a run, its files, tests, wall time and CPU time with all processes that it started. */
export default class CpuReporter implements Reporter {
  onInit(): void {
    process.once("exit", () => {
      const cpuSeconds = Math.round(cpuTime(process.pid) / 1_000_000);
      const seconds = Math.round(process.uptime());
      process.stdout.write(`${this.#files} files, ${this.#tests} tests, ${seconds} s, ${cpuSeconds} CPU s\n`);
    });
  }

  onTestRunEnd(modules: readonly TestModule[]): void {
    this.#files = modules.length;
    this.#tests = modules.reduce((sum, { children }) => sum + [...children.allTests()].length, 0);
  }

  #files = 0;
  #tests = 0;
}
