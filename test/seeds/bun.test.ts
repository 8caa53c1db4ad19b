/** Tools of the order that need Bun: they read files by Bun.file, or hold a namespace of TypeScript. */
import { expect, test } from "vitest";
import { installBun } from "../bodies/processes/bun-program.ts";
import { outputOf, startProcess } from "../bodies/processes/driver.ts";
import { block } from "./blocks.ts";

const bun = installBun();

test("rows 20 to 29: the read tool of the order reads text, lines, images, and says which file is not there", async () => {
  const files = {
    "tool/read.ts": `import path from "node:path";
import { Tool } from "@opencode-ai/plugin";
import z from "zod";
const DESCRIPTION = "Reads a file";
const Instance = { worktree: process.cwd() };
const assertExternalDirectory = async (ctx: any, target: string, { bypass }: { bypass: boolean }) => {
  if (bypass || target.startsWith(Instance.worktree)) return;
  await ctx.ask({ permission: "external_directory", patterns: [path.dirname(target)], metadata: {} });
};
${block("000.4")}`,
    "a.txt": "one\ntwo\nthree",
    "a.png": "not really",
  };
  await using started = await startProcess({ files, load: ["tool/read.ts"], runtime: bun });
  expect(started.hello).toMatchObject({ problems: [], tools: [{ name: "read", description: "Reads a file" }] });
  const ended = await started.call("read", { filePath: "a.txt", offset: "1", limit: "1" });
  const filepath = `${started.directory}/a.txt`;
  expect(outputOf(ended)).toBe(`<file path="${filepath}">\n    2→two\n</file>`);
  expect(ended.result.value).toMatchObject({
    title: "a.txt",
    metadata: { truncated: true, totalLines: 3, shownLines: 1 },
  });
  const ask = { permission: "read", patterns: [filepath], always: ["*"], metadata: { filepath } };
  expect(ended.requests).toMatchObject([{ case: "ask", value: ask }]);
  const outside = await started.call("read", { filePath: "/etc/hostname" });
  expect(outside.requests.map(({ value }) => Object(value).permission)).toEqual(["external_directory", "read"]);
  const { result } = await started.call("read", { filePath: "a.png" });
  expect(result.value).toMatchObject({ attachments: [{ mime: "image/png" }] });
  const missing = await started.call("read", { filePath: "none.txt" });
  expect(missing.result).toMatchObject({ value: { message: `File not found: ${started.directory}/none.txt` } });
});

test("rows 15 to 19, 41: a tool of the order's own define validates, runs and truncates", async () => {
  const files = {
    "tool/own.ts": `import { z } from "zod";
type Info<P extends z.ZodType> = any;
${block("000.7")}
${block("000.3").replace("export function", "function")}
export default define("own", async () => ({
  description: "Repeats", parameters: z.object({ count: z.number() }),
  async execute({ count }: any) { return { title: "t", output: "x".repeat(count), metadata: {} }; },
}));`,
  };
  await using started = await startProcess({ files, load: ["tool/own.ts"], runtime: bun });
  expect(started.hello).toMatchObject({ problems: [], tools: [{ name: "own" }] });
  const ended = await started.call("own", { count: 30_005 });
  expect(outputOf(ended)).toMatch(/^x{30000}\n\n\[Output truncated: 5 more characters\]$/);
  expect(ended.result.value).toMatchObject({ metadata: { truncated: true, originalSize: 30_005 } });
});
