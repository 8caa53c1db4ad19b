import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/clients/*.test.ts"],
    setupFiles: ["test/patience.ts"],
    globalSetup: ["test/clients/programs.ts", "test/builds.ts"],
    // They wait for registries and programs more than they compute.
    maxWorkers: 3,
    // Packages are fetched and generators compiled before the first test, Go programs when they are run first.
    hookTimeout: 600_000,
    testTimeout: 600_000,
  },
});
