import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/faults/*.test.ts"],
    globalSetup: ["test/programs.ts", "test/faults/report.ts"],
    // The machine is what is measured and broken here: one thing at a time.
    fileParallelism: false,
    // Promises are kept in time or broken; a machine is only slow. So nothing but a hang is cut off.
    testTimeout: process.env.TOOLGATE_LONG === "1" ? 3_600_000 : 300_000,
    hookTimeout: 120_000,
  },
});
