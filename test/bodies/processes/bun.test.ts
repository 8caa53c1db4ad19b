import { describe, expect, test } from "vitest";
import { installBun } from "./bun-program.ts";
import { outputOf, startProcess } from "./driver.ts";
import { describeLoading } from "./loader-suite.ts";
import { describePlugins } from "./plugin-suite.ts";
import { describeTools } from "./tool-suite.ts";

const bun = installBun();

describe("under Bun", () => {
  describeLoading(bun);
  describeTools(bun);
  describePlugins(bun);
});

/** Reads files as the example of opencode's documentation does: with Bun.file, and helpers from files beside the tools. */
const read = `
  import path from "node:path";
  import { Tool } from "@opencode-ai/plugin";
  import z from "zod";
  import { Instance } from "../project/instance";
  import { assertExternalDirectory } from "../project/external-directory";
  import DESCRIPTION from "./read.txt";
  export const ReadTool = Tool.define("read", {
    description: DESCRIPTION,
    parameters: z.object({
      filePath: z.string().describe("The path to the file to read"),
      offset: z.coerce.number().optional(),
      limit: z.coerce.number().optional(),
    }),
    async execute(params, ctx) {
      let filepath = params.filePath;
      if (!path.isAbsolute(filepath)) filepath = path.join(process.cwd(), filepath);
      await assertExternalDirectory(ctx, filepath, { bypass: Boolean(ctx.extra?.["bypassCwdCheck"]) });
      await ctx.ask({ permission: "read", patterns: [filepath], always: ["*"], metadata: { filepath } });
      const file = Bun.file(filepath);
      if (!(await file.exists())) throw new Error(\`File not found: \${filepath}\`);
      if (file.type.startsWith("image/")) {
        const base64 = await file.arrayBuffer().then((buf) => Buffer.from(buf).toString("base64"));
        const attachments = [{ type: "file", mime: file.type, url: \`data:\${file.type};base64,\${base64}\` }];
        return { title: path.relative(Instance.worktree, filepath), output: "Image read successfully", metadata: { type: "image" }, attachments };
      }
      const lines = (await file.text()).split("\\n").slice(params.offset || 0, (params.offset || 0) + (params.limit || 2000));
      const numbered = lines.map((line, i) => \`\${(i + 1).toString().padStart(5)}→\${line}\`).join("\\n");
      return { title: path.relative(Instance.worktree, filepath), output: numbered, metadata: { shownLines: lines.length } };
    },
  });`;

const helpers = {
  "project/instance.ts": "export const Instance = { worktree: process.cwd() };",
  "project/external-directory.ts": `
    import path from "node:path";
    import { Instance } from "./instance";
    export async function assertExternalDirectory(ctx: any, target: string, options?: { bypass?: boolean }) {
      if (options?.bypass || !path.relative(Instance.worktree, target).startsWith("..")) return;
      await ctx.ask({ permission: "external_directory", patterns: [path.dirname(target)], always: [], metadata: {} });
    }`,
};

test("the read tool of opencode's documentation runs under Bun", async () => {
  const files = {
    ...helpers,
    "tool/read.ts": read,
    "tool/read.txt": "Reads a file",
    "src/a.txt": "one\ntwo",
    "a.png": "not really",
  };
  await using started = await startProcess({ files, load: ["tool/read.ts"], runtime: bun });
  expect(started.hello).toMatchObject({ problems: [], tools: [{ name: "read", description: "Reads a file" }] });
  const ended = await started.call("read", { filePath: "src/a.txt", limit: "1" });
  expect(outputOf(ended)).toBe("    1→one");
  const filepath = `${started.directory}/src/a.txt`;
  // The service resolves paths, and asks for the directory.
  const ask = { permission: "read", patterns: [filepath], always: ["*"], metadata: { filepath } };
  expect(ended.requests).toMatchObject([{ case: "ask", value: ask }]);
  const outside = await started.call("read", { filePath: "/etc/hostname" });
  const asked = ["external_directory", "read"];
  expect(outside.requests).toMatchObject(asked.map((permission) => ({ case: "ask", value: { permission } })));
  const { result, blobs } = await started.call("read", { filePath: "a.png" });
  expect(result.value).toMatchObject({ attachments: [{ blob: 1, mime: "image/png" }] });
  expect(blobs.get(1)?.toString()).toBe("not really");
});
