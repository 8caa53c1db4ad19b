import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/faults/*.test.ts"],
    globalSetup: ["test/programs.ts", "test/faults/report.ts"],
    // These tests measure and break the whole machine, so they run one at a time.
    fileParallelism: false,
    // Tests check deadlines themselves, and a machine may be slow, so only a hang is cut off.
    testTimeout: process.env.TOOLGATE_LONG === "1" ? 3_600_000 : 300_000,
    hookTimeout: 120_000,
  },
});
