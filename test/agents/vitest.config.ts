import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/agents/*.test.ts"],
    globalSetup: ["test/builds.ts", "test/agents/programs.ts"],
    reporters: ["default", "test/agents/table-reporter.ts"],
    // Each test starts agents; those of one file run one after the other, and mostly wait.
    maxWorkers: 3,
    testTimeout: 180_000,
    hookTimeout: 180_000,
  },
});
