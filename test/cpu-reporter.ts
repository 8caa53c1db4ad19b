import type { Reporter, TestModule } from "vitest/node";
import { cpuTime } from "../bench/cpu-time.ts";

/** Prints, as the last line of a run, its files, tests, wall time and CPU time with all processes that it started. */
export default class CpuReporter implements Reporter {
  onInit(): void {
    setInterval(() => this.#sample(), 1_000).unref();
    process.once("exit", () => {
      this.#sample();
      const cpuSeconds = Math.round((this.#last + this.#lost) / 1_000_000);
      const seconds = Math.round(process.uptime());
      process.stdout.write(`${this.#files} files, ${this.#tests} tests, ${seconds} s, ${cpuSeconds} CPU s\n`);
    });
  }

  onTestRunEnd(modules: readonly TestModule[]): void {
    this.#files = modules.length;
    this.#tests = modules.reduce((sum, { children }) => sum + [...children.allTests()].length, 0);
  }

  /** The sum falls when a tree of processes is killed at once, as browsers are: no parent waits for them and adds their time to its own. */
  #sample(): void {
    const now = cpuTime(process.pid);
    this.#lost += Math.max(0, this.#last - now);
    this.#last = now;
  }

  #files = 0;
  #tests = 0;
  #last = 0;
  #lost = 0;
}
