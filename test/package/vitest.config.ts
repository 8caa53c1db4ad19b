import { defineConfig } from "vitest/config";
import FailedFiles from "../failed-files.ts";

export default defineConfig({
  test: {
    reporters: ["default", new FailedFiles()],
    root: import.meta.dirname,
    include: ["*.test.ts"],
    globalSetup: "install.ts",
    testTimeout: 60_000,
    hookTimeout: 300_000,
  },
});
