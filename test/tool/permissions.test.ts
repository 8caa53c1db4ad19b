import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import * as z from "zod";
import { declaredTools } from "../../src/compose/built-in-tools.ts";
import { checkConfig } from "../../src/config/check-config.ts";
import { boundTool, defineTool, type ToolConfig } from "../../src/tool/define-tool.ts";
import { pathAsks } from "../../src/tool/path-asks.ts";
import type { DefinedTool, Plan } from "../../src/tool/tool.ts";
import { serve } from "../call/server.ts";

/** A new tool, as it would stand in its file; nothing else in the service names it. */
const wc = defineTool({
  name: "wc",
  description: "Count the characters of a path.",
  input: z.object({ filePath: z.string() }),
  permissions: ["read"],
  readOnly: true,
  async plan({ filePath }, { workspace }) {
    const path = await workspace.resolve(filePath);
    return { title: path.pattern, asks: pathAsks("read", path) };
  },
  execute: ({ filePath }) => ({ output: String(filePath.length) }),
});

const declaring = (name: string, permissions: string[] | undefined) =>
  defineTool({
    name,
    description: "",
    input: z.object({}),
    ...(permissions && { permissions }),
    plan: () => ({ title: name, asks: [] }),
    execute: () => ({ output: name }),
  });

async function listedFor(agent: string, tools: DefinedTool[]): Promise<string[]> {
  const service = await serve(tools);
  const listed = await service.agent.tools.listTools({ agent });
  return listed.tools.map(({ name }) => name);
}

describe("a tool that declares what it asks", () => {
  test("is visible to an agent that may do one of these things, and serves it", async () => {
    const service = await serve([wc]);
    const { tools } = await service.agent.tools.listTools({ agent: "explore" });
    expect(tools.map(({ name }) => name)).toContain("wc");
    const { part } = await service.agent.tools.callTool({ tool: "wc", input: { filePath: "a.txt" }, agent: "explore" });
    expect(part?.state).toMatchObject({ case: "completed", value: { output: "5" } });
  });

  test("is hidden where all of these are denied, and only there", async () => {
    const tools = [
      declaring("both", ["deploy", "read"]),
      declaring("none", []),
      declaring("denied", ["deploy", "edit"]),
      declaring("undeclared", undefined),
    ];
    const listed = await listedFor("explore", tools);
    expect(listed.filter((name) => tools.some((tool) => boundTool(tool).name === name))).toEqual(["both", "none"]);
  });

  test("is known to check-config and to GetServerInfo by these names", async () => {
    const folder = await mkdtemp(join(tmpdir(), "toolgate-permissions-"));
    onTestFinished(() => rm(folder, { recursive: true }));
    const file = join(folder, "toolgate.toml");
    await writeFile(file, '[permission]\ndeploy = "ask"\n');
    const deploy = declaring("ship", ["deploy"]);
    const check = (tools: DefinedTool[]) =>
      checkConfig(file, { env: {}, home: folder, directory: folder }, tools.map(boundTool));
    expect((await check(await declaredTools())).findings).toMatchObject([
      { message: expect.stringContaining('unknown permission "deploy"') },
    ]);
    expect((await check([...(await declaredTools()), deploy])).findings).toEqual([]);
    const service = await serve([deploy]);
    const { agentDetails } = await service.agent.tools.getServerInfo({});
    expect(agentDetails.find(({ agent }) => agent === "build")?.canAsk).toContain("deploy");
  });
});

test("a built-in tool always declares what it asks", async () => {
  const undeclared = (await declaredTools()).filter(({ permissions }) => permissions === undefined);
  expect(undeclared.map(({ name }) => name)).toEqual([]);
});

test("an ask that was not declared is judged like any other", async () => {
  const tool = defineTool({
    name: "sly",
    description: "",
    input: z.object({}),
    permissions: [],
    plan: () => ({ title: "sly", asks: [{ permission: "bash", patterns: ["rm -rf /"] }] }),
    execute: () => ({ output: "ran" }),
  });
  const service = await serve([tool]);
  const { part } = await service.agent.tools.callTool({ tool: "sly", input: {}, waitMs: 0 });
  expect(part?.state.case).toBe("pending");
});

describe("defineTool refuses", () => {
  const config: ToolConfig<z.ZodObject, Plan, never> = {
    name: "t",
    description: "",
    input: z.object({}),
    execute: () => ({}),
  };

  test("a permission with a wildcard", () => {
    expect(() => defineTool({ ...config, permissions: ["mcp_*"] })).toThrow(
      'tool "t" declares the permission "mcp_*"; name each one, without wildcards',
    );
  });

  test("permissions without that of the default plan", () => {
    expect(() => defineTool({ ...config, permissions: ["read"] })).toThrow('tool "t" has no plan, so it asks "t"');
  });
});
