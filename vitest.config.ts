import { defineConfig } from "vitest/config";
import { broadOnly, longOnly } from "./test/breadth/broad-only.ts";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    // The last one prints the CPU time as the last line.
    reporters: ["default", "./test/cpu-reporter.ts"],
    // These have separate scripts: test:faults takes minutes, test:clients needs other languages, test:package and test:agents
    // install.
    exclude: ["test/faults/**", "test/clients/**", "test/package/**", "test/agents/**", ...broadOnly, ...longOnly],
    // npm run test:breadth runs these, and all cases of the files that take only samples here.
    provide: { isBroad: false },
    globalSetup: ["test/programs.ts", "test/builds.ts"],
    setupFiles: ["test/seed.ts", "test/patience.ts"],
    // The tests share no module state, and loading everything for each file would take most of the time.
    isolate: false,
    // Tests wait for processes and browsers more than they compute, so two cores serve four workers.
    maxWorkers: 4,
    // Only what hangs takes so long: many tests start processes, and a busy machine starts them slowly.
    testTimeout: 300_000,
    expect: { poll: { timeout: 60_000 } },
    hookTimeout: 300_000,
  },
});
