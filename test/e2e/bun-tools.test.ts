import { mkdtempSync, symlinkSync } from "node:fs";
import { mkdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { SourceService } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { installBun } from "../bodies/processes/bun-program.ts";
import { clientOf, connect } from "./clients.ts";
import { createService } from "./service.ts";

/** Uses what only Bun has, `init(ctx)`, and calls of other tools. */
const tool = `import { Tool } from "@opencode-ai/plugin";
import z from "zod";
export const counted = Tool.define("counted", async (ctx) => ({
  description: "Counts lines for " + (ctx?.agent?.name ?? ctx?.agent) + ".",
  parameters: z.object({ path: z.string() }),
  async execute({ path }, ctx) {
    const file = Bun.file(path);
    if (!(await file.exists())) return { title: path, output: "not there", metadata: {} };
    const lines = (await file.text()).split("\\n").length;
    const hidden = await Bun.file("hidden.txt").text().catch((error) => error.code);
    return { title: path, output: \`\${Bun.version.split(".").length} \${lines} \${hidden}\`, metadata: { lines } };
  },
}));
`;
const caller = `import { defineTool, z } from "toolgate/plugin";
export default defineTool({
  name: "calls",
  description: "Calls echo.",
  input: z.object({ text: z.string() }),
  async execute({ text }, ctx) {
    const [child] = await ctx.calls([{ tool: "echo", input: { text } }], { atomic: false });
    return { output: child.text };
  },
});
`;

// A link below the temporary directory, as npm's .bin has in a project there.
const links = mkdtempSync(join(tmpdir(), "toolgate-bun-"));
symlinkSync(installBun().program, join(links, "bun"));
const service = createService({
  settings: `[tools]\nbun = "${join(links, "bun")}"\n[permission.read]\n"*" = "allow"\n"hidden.txt" = "deny"\n`,
});

beforeAll(async () => {
  await service.start();
  await service.stop();
  const tools = join(dirname(service.config), "tool");
  await mkdir(tools, { recursive: true });
  await writeFile(join(tools, "counted.ts"), tool);
  await writeFile(join(tools, "calls.ts"), caller);
  await writeFile(join(service.workspace, "a.txt"), "one\ntwo");
  await writeFile(join(service.workspace, "hidden.txt"), "hidden");
  await service.start();
});
afterAll(async () => {
  await service.close();
  await rm(links, { recursive: true });
});

async function call(tool: string, input = {}) {
  const { part } = await connect(service, "caller").tools.callTool({ tool, input, agent: "free" });
  return part?.state.value;
}

test("a tool file runs under the configured Bun, in the sandbox", async () => {
  expect(await call("counted", { path: "a.txt" })).toMatchObject({ output: expect.stringMatching(/^3 2 E/) });
  const { sources } = await clientOf(SourceService, service.url, "approver-token-for-tests").listSources({});
  expect(sources).toMatchObject([{ origin: expect.stringContaining("Bun "), problem: "" }]);
});

test("its body makes calls, and its description is that of the agent", async () => {
  const { tools } = connect(service, "caller");
  expect(await call("calls", { text: "hello" })).toMatchObject({ output: "hello" });
  const { tools: listed } = await tools.listTools({ agent: "free" });
  expect(listed).toContainEqual(
    expect.objectContaining({ name: "counted", description: expect.stringContaining("Counts lines for free.") }),
  );
});
