import { expect, test } from "vitest";
import { node, outputOf, startProcess } from "./driver.ts";
import { describeLoading } from "./loader-suite.ts";

describeLoading(node);

test("under Node what needs Bun says so, with its line and the line that installs it", async () => {
  const files = {
    "tool/bun.ts":
      'import { tool } from "@opencode-ai/plugin";\nimport { Database } from "bun:sqlite";\nexport default Database;',
    "tool/globals.ts": `
      import { tool } from "@opencode-ai/plugin";
      export const kind = tool({ description: "", args: {}, execute: async () => typeof Bun });
      export const fails = tool({ description: "", args: {}, execute: async () => String(Bun.version) });`,
  };
  await using started = await startProcess({ files, load: Object.keys(files) });
  const bun = "it needs Bun: install it (npm install -g bun), or name it in toolgate.toml as [tools] bun";
  const reason = `bun:sqlite is a module of Bun: ${bun}`;
  expect(started.hello.problems).toMatchObject([{ path: `${started.directory}/tool/bun.ts`, line: 2, reason }]);
  expect(outputOf(await started.call("globals_kind", {}))).toBe("undefined");
  const { result } = await started.call("globals_fails", {});
  expect(result.value).toMatchObject({ message: `Bun is not defined: ${bun}` });
});
