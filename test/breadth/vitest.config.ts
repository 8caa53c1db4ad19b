import { defineConfig } from "vitest/config";
import base from "../../vitest.config.ts";

/** Runs the files that call `casesOf` or `isBroad` of test/breadth.ts, with all of their cases. */
export default defineConfig({
  test: {
    ...base.test,
    include: [
      "test/console/{inbox,links,policy,session,tools,windows}.test.ts",
      "test/model/model.test.ts",
      "test/store/redis-{cluster,scripts}.test.ts",
      "test/tools/searx.test.ts",
      "test/tools/webfetch.test.ts",
    ],
    provide: { isBroad: true },
  },
});
