import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/faults/*.test.ts"],
    globalSetup: ["test/programs.ts", "test/faults/report.ts"],
    // The machine is what is measured and broken here: one thing at a time.
    fileParallelism: false,
    testTimeout: process.env.TOOLGATE_LONG === "1" ? 3_600_000 : 90_000,
    hookTimeout: 60_000,
  },
});
