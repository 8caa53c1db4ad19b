import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    root: import.meta.dirname,
    include: ["*.test.ts"],
    testTimeout: 120_000,
    // The first one builds the API server.
    hookTimeout: 3_600_000,
  },
});
