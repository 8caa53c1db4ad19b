import { execFile } from "node:child_process";
import { mkdtemp, realpath, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, onTestFinished, test } from "vitest";
import { block } from "./blocks.ts";

const root = join(import.meta.dirname, "../..");

/** Names that the order uses and does not declare. */
const given = `import * as z from "zod";
type FilePart = { mime: string; url: string; filename?: string };
namespace Agent { export type Info = { name: string } }
type InitContext = { agent?: Agent.Info };
`;
/** A tool as our module declares it, and the context that its body gets. */
const own = `import { Tool as Own, type PluginToolContext, type PluginToolResult } from "${root}/src/tool/plugin.ts";
const made = Own.define("made", async () => ({
  description: "", parameters: z.object({ a: z.string() }),
  async execute({ a }: { a: string }) { return { title: a, output: a, metadata: {} }; },
}));
declare const context: PluginToolContext;
`;

/** Programs that hold the types of the order beside ours. */
const programs: Readonly<Record<string, string>> = {
  "package.json": `{ "type": "module" }`,
  "interface.ts": `${given}namespace Context000 { ${block("000.2")} }
${block("000.1").replace("export namespace Tool {", "export namespace Tool { export type Context = Context000.Context;")}
${own}
const { agent, sessionID, messageID, abort, callID, extra, ask, metadata }: Context000.Context = context;
const result: PluginToolResult = {} as Tool.Result;
`,
  "info.ts": `${given}${block("002.1")}
${own}
const info: Pick<Tool.Info, "id"> = made;
`,
  "definition.ts": `${given}${block("003.1")}
${own}
const result: PluginToolResult = {} as Tool.Result;
const info: Pick<Tool.Info, "id"> = made;
const wanted: Pick<Tool.ExecuteContext, "sessionID" | "model"> = context;
`,
  "validators.ts": `${block("001.7").replaceAll("// ...etc\n", "")}
const state: ToolState = toolStateSchema.parse({});
const part: ToolPart = toolPartSchema.parse({});
const request: PermissionRequest = permissionRequestSchema.parse({});
const reply: PermissionReply = permissionReplySchema.parse("once");
state.status === "pending" && state.raw;
`,
};

test("rows 1 to 13, 81, 82, 162, 164, 165: the ordered types fit ours", async () => {
  const folder = await realpath(await mkdtemp(join(tmpdir(), "toolgate-seed-types-")));
  onTestFinished(() => rm(folder, { recursive: true }));
  for (const [name, text] of Object.entries(programs)) await writeFile(join(folder, name), text);
  const compilerOptions = {
    noEmit: true,
    noUnusedLocals: false,
    // The order leaves types of parameters out.
    noImplicitAny: false,
    paths: {
      "@generated/validators/*": [join(root, "src/view/json-form/schemas.ts")],
    },
    typeRoots: [join(root, "node_modules/@types")],
    rootDir: "/",
  };
  await symlink(join(root, "node_modules"), join(folder, "node_modules"));
  await writeFile(
    join(folder, "tsconfig.json"),
    JSON.stringify({ extends: join(root, "tsconfig.json"), compilerOptions, include: ["*.ts"] }),
  );
  const tsc = join(root, "node_modules/typescript/bin/tsc");
  const ran = promisify(execFile)(process.execPath, [tsc, "-p", folder]);
  expect(await ran.catch(({ stdout }) => stdout)).toEqual({ stdout: "", stderr: "" });
});
