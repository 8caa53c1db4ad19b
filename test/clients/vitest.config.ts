import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/clients/*.test.ts"],
    globalSetup: ["test/clients/programs.ts"],
    testTimeout: 60_000,
    // Packages are fetched and code is generated and compiled before the first test.
    hookTimeout: 300_000,
  },
});
