import { appendFileSync } from "node:fs";
import { relative } from "node:path";
import { stripVTControlCharacters } from "node:util";
import type { SerializedError } from "vitest";
import type { Reporter, TestCase, TestModule, TestSuite } from "vitest/node";

/**
 * Appends the files that failed to the list that `TOOLGATE_FAILED_FILES` names, for `.ci/second-run.sh`: one line each, its path and
 * its first error behind a tab. An error of no file is a line without a path.
 */
export default class FailedFiles implements Reporter {
  onInit(): void {
    this.#list = process.env.TOOLGATE_FAILED_FILES;
    // A run of tests that a test starts has its own failures.
    delete process.env.TOOLGATE_FAILED_FILES;
  }

  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly SerializedError[]): void {
    if (this.#list === undefined) return;
    const errors = new Map<string, string>();
    for (const module of modules) {
      const state = module.state();
      if (state !== "passed" && state !== "skipped")
        errors.set(module.moduleId, firstError(module) ?? `it is ${state}`);
    }
    for (const error of unhandled) {
      const path = String(error.VITEST_TEST_PATH ?? "");
      if (!errors.has(path)) errors.set(path, `unhandled: ${error.message}`);
    }
    for (const [path, error] of errors) {
      const line = stripVTControlCharacters(error).replaceAll(/\s+/g, " ");
      appendFileSync(this.#list, `${path === "" ? "" : relative(process.cwd(), path)}\t${line.slice(0, 300)}\n`);
    }
  }

  #list: string | undefined;
}

/** Returns the first error of a file: of its import, of a hook, or of a test. */
function firstError(module: TestModule): string | undefined {
  const [suite] = [module, ...module.children.allSuites()].filter((one) => one.errors().length > 0);
  const [test] = module.children.allTests("failed");
  if (suite !== undefined) return describe(suite, suite.errors());
  return test && describe(test, test.result().errors ?? []);
}

function describe(one: TestModule | TestSuite | TestCase, [error]: readonly { message: string }[]): string {
  return `${one.type === "module" ? "" : `${one.fullName}: `}${error?.message ?? "no error"}`;
}
