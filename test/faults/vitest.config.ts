import { defineConfig } from "vitest/config";
import { BaseSequencer, type TestSpecification } from "vitest/node";
import { isLong } from "./report.ts";

/** Files that take longest. One of them that began last would leave a core idle. */
const longest = isLong
  ? ["nemesis", "network", "failover", "upgrades", "kills", "answers", "rolling", "watchers", "controls"]
  : ["controls", "network", "failover", "nemesis", "upgrades", "kills", "lost-work", "answers", "rolling"];

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rankOf = ({ moduleId }: TestSpecification) =>
      longest.findLastIndex((name) => moduleId.endsWith(`/${name}.test.ts`)) + 1 || longest.length + 1;
    return files.toSorted((one, other) => rankOf(one) - rankOf(other));
  }
}

export default defineConfig({
  test: {
    include: ["test/faults/*.test.ts", ...(isLong ? ["test/model/votes.test.ts"] : [])],
    setupFiles: ["test/patience.ts"],
    globalSetup: ["test/programs.ts", "test/builds.ts", "test/faults/report.ts"],
    // These tests wait more than they compute, so two cores serve two files.
    maxWorkers: 2,
    sequence: { sequencer: LongestFirst },
    // Tests check deadlines themselves, and a machine may be slow, so only a hang is cut off.
    testTimeout: isLong ? 3_600_000 : 300_000,
    hookTimeout: 300_000,
  },
});
