import { defineConfig } from "vitest/config";
import { BaseSequencer, type TestSpecification } from "vitest/node";
import base from "../../vitest.config.ts";
import { broadOnly } from "./broad-only.ts";

/** Files that take minutes. One of them that began last would keep one core busy while the other is idle. */
const longest = ["sandbox/attempts", "sandbox/races", "e2e/custom-tools", "sandbox/file-fuzz"];

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const isLong = ({ moduleId }: TestSpecification) => longest.some((name) => moduleId.endsWith(`${name}.test.ts`));
    return [...files.filter(isLong), ...files.filter((file) => !isLong(file))];
  }
}

/** Runs the files that `npm test` leaves out, and those that call `casesOf` or `isBroad` of test/breadth.ts with all of their cases. */
export default defineConfig({
  test: {
    ...base.test,
    include: [
      ...broadOnly,
      "test/console/{inbox,links,policy,session,tools,windows}.test.ts",
      "test/e2e/{delegated,question}.test.ts",
      "test/model/model.test.ts",
      "test/policy/bypass.test.ts",
      "test/store/redis-{cluster,news,scripts}.test.ts",
      "test/sandbox/{created,enforcement,network}.test.ts",
      "test/tool-process/node-loader.test.ts",
      "test/tools/webfetch.test.ts",
    ],
    exclude: [],
    provide: { isBroad: true },
    sequence: { sequencer: LongestFirst },
  },
});
