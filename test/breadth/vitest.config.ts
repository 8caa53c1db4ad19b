import { defineConfig } from "vitest/config";
import base from "../../vitest.config.ts";
import { filesFirst } from "../files-first.ts";
import { broadOnly, longOnly } from "./broad-only.ts";

/** Runs the files that `npm test` leaves out, and those that call `casesOf` or `isBroad` of test/breadth.ts with all of their cases. */
export default defineConfig({
  test: {
    ...base.test,
    include: [
      ...broadOnly,
      ...(process.env.TOOLGATE_LONG === "1" ? longOnly : []),
      "test/cli/demo.test.ts",
      "test/console/inbox.test.ts",
      "test/e2e/{delegated,question}.test.ts",
      "test/policy/bypass.test.ts",
      "test/reach/audit-export.test.ts",
      "test/store/redis-{damage,news}.test.ts",
      "test/sandbox/{enforcement,network}.test.ts",
      "test/bodies/processes/node-loader.test.ts",
      "test/tools/webfetch.test.ts",
    ],
    exclude: [],
    provide: { isBroad: true },
    sequence: {
      sequencer: filesFirst(["sandbox/attempts", "e2e/custom-tools", "sandbox/races", "sandbox/file-fuzz"]),
    },
    // Some tests take half a minute on an idle machine.
    testTimeout: 600_000,
  },
});
