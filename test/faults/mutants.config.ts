import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/programs.ts", "test/faults/mutants-console.ts"],
    isolate: false,
    maxWorkers: 1,
    // A fault that makes a test hang is noticed as well.
    testTimeout: 30_000,
    expect: { poll: { timeout: 15_000 } },
    hookTimeout: 60_000,
  },
});
