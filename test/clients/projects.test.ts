import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { runLine, serviceForCommands } from "./commands.ts";
import { installProjects, layProject } from "./installed-projects.ts";

const service = serviceForCommands();

beforeAll(async () => {
  await Promise.all([service.start(), installProjects()]);
  for (const [name, lay] of Object.entries(layProject)) {
    const directory = join(service.workspace, name);
    await mkdir(directory);
    await lay(directory);
  }
});
afterAll(service.close);

type Work = readonly [project: string, line: string, result: RegExp];

/** Ordinary work in a project, and the part of its output that has to be the same without a sandbox. */
const work: readonly Work[] = [
  ["toolgate", "npm run -s build && find dist/console -type f -exec md5sum {} + | sort", /^[0-9a-f]{32} .+$/gm],
  ["fast-uri", "npm test", /^# (?:tests|pass) +\d+$/gm],
  ["uuid", "go build ./... && go vet ./... && go test ./...", /^ok\s+\S+/gm],
];
/** TOOLGATE_LONG=1 does these as well: each takes a minute on a busy machine. */
const longWork: readonly Work[] = [
  ["toolgate", "npx tsc -p src/console && echo the types are right", /the types are right/g],
  // Others mount a disk or make a sandbox themselves, which no command can.
  [
    "toolgate",
    "npx vitest run test/view/words test/policy/{policy,laws,wildcard,parse-rules,risk}.test.ts",
    /(?:Test Files|Tests) .*\d passed.*/g,
  ],
];
const isLong = process.env.TOOLGATE_LONG === "1";

describe.each(isLong ? [...work, ...longWork] : work)(
  "in the sandbox, in the project %s: %s",
  (project, line, result) => {
    test("ends as it does without a sandbox", async () => {
      const inside = await runLine(service, "build", line, project);
      expect(inside.metadata, inside.output).toMatchObject({ exit: 0, sandbox: { profile: "workspace-write" } });
      expect(inside.metadata.sandbox.layers).toEqual(
        expect.arrayContaining(["disk", "files", "network", "system_calls"]),
      );
      const found = inside.output.match(result);
      expect(found, inside.output).not.toBeNull();
      const control = await runLine(service, "open", line, project);
      expect(control.metadata, control.output).toMatchObject({ exit: 0, sandbox: { profile: "off" } });
      expect(found).toEqual(control.output.match(result));
    });
  },
);
