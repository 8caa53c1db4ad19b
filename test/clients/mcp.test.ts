import { execFile } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createService, unconfined } from "../e2e/service.ts";
import { programEntry } from "../main.ts";
import { inModules, pinned, python } from "./mcp-programs.ts";

const root = join(import.meta.dirname, "../..");

/** Tools that the conformance suite expects of a server. */
const tools = {
  test_simple_text: `defineTool({ description: "Returns text.", input: z.object({}),
    execute: () => ({ output: "This is a simple text response for testing." }) })`,
  test_image_content: `defineTool({ description: "Returns an image.", input: z.object({}), execute: () => ({ output: "",
    attachments: [{ mime: "image/png", data: Buffer.from("89504e470d0a1a0a0000000d49484452", "hex") }] }) })`,
  test_error_handling: `defineTool({ description: "Fails.", input: z.object({}),
    execute: () => { throw new ToolFailure("This tool intentionally returns an error for testing"); } })`,
  json_schema_2020_12_tool: `defineTool({ description: "Tool with JSON Schema 2020-12 features", input: {
    $schema: "https://json-schema.org/draft/2020-12/schema", type: "object",
    $defs: { address: { type: "object", properties: { street: { type: "string" }, city: { type: "string" } } } },
    properties: { name: { type: "string" }, address: { $ref: "#/$defs/address" } }, additionalProperties: false },
    execute: () => ({ output: "done" }) })`,
};

/** The conformance client and the inspector send no token. */
const service = createService({
  settings: `insecure_no_auth = true\nmcp_hold_ms = 3_000\n${unconfined}[permission]\n"test_*" = "allow"\n`,
});

beforeAll(async () => {
  await service.start();
  const folder = join(dirname(service.config), "tool");
  await mkdir(folder, { recursive: true });
  const head = 'import { defineTool, ToolFailure, z } from "toolgate/plugin";\nexport default ';
  for (const [name, tool] of Object.entries(tools)) await writeFile(join(folder, `${name}.ts`), `${head}${tool};\n`);
});
afterAll(service.close);

async function run(program: string, args: readonly string[], { cwd = root }: { cwd?: string } = {}): Promise<string> {
  const env = { ...process.env, TOOLGATE_URL: service.url, NO_COLOR: "1" };
  const { stdout } = await promisify(execFile)(program, [...args], { cwd, env, maxBuffer: 16 * 1_048_576 });
  return stdout;
}

describe("the conformance suite of the protocol", () => {
  const scenarios = [
    ...["server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-image", "tools-call-error"],
    ...["json-schema-2020-12", "server-sse-multiple-streams", "resources-list", "dns-rebinding-protection"],
  ];

  test.each(scenarios)("%s", async (scenario) => {
    const args = ["server", "--url", `${service.url}/mcp`, "--scenario", scenario];
    expect(await run(process.execPath, [inModules("conformance/dist/index.js"), ...args])).toMatch(
      /Passed: ([1-9]\d*)\/\1, 0 failed, 0 warnings/,
    );
  });
});

describe("the inspector", () => {
  const mcp = [process.execPath, programEntry(), "mcp"];
  const ways = [
    ["http", () => ["--transport", "http", "--server-url", `${service.url}/mcp`]],
    ["stdio", () => ["-e", `TOOLGATE_URL=${service.url}`, ...mcp]],
  ] as const;

  test.each(ways)("lists portable schemas and calls a tool over %s", async (_way, target) => {
    const inspect = (...args: string[]) =>
      run(process.execPath, [inModules("inspector/clients/launcher/build/index.js"), "--cli", ...target(), ...args]);
    const { tools: listed } = JSON.parse(await inspect("--method", "tools/list", "--strict"));
    expect(listed.map(({ name }: { name: string }) => name)).toContain("toolgate_wait");
    const called = JSON.parse(await inspect("--method", "tools/call", "--tool-name", "test_simple_text"));
    expect(called.content).toEqual([{ type: "text", text: "This is a simple text response for testing." }]);
  });
});

describe("the Python client", () => {
  const mcp = [process.execPath, programEntry(), "mcp", "--server"];
  const ways = [
    ["auto", "HTTP", "2026-07-28", () => [`${service.url}/mcp`]],
    ["legacy", "HTTP", "2025-11-25", () => [`${service.url}/mcp`]],
    ["auto", "stdio", "2026-07-28", () => [...mcp, service.url]],
    ["legacy", "stdio", "2025-11-25", () => [...mcp, service.url]],
  ] as const;

  test.each(ways)(
    "%s over %s speaks %s: lists, calls, and is answered while a call waits",
    async (mode, _way, version, target) => {
      const printed = JSON.parse(await run(python, [join(pinned, "client.py"), mode, ...target()]));
      expect(printed).toMatchObject({ version, text: "This is a simple text response for testing.", isError: false });
      expect(printed.tools).toEqual(expect.arrayContaining(["read", "toolgate_wait"]));
      expect(printed.waiting).toContain("Nothing has run yet");
      // On a busy machine the call is also seen before it asks.
      expect(printed.progress.at(-1)).toBe(`waiting for approval: bash: echo ${mode}`);
    },
  );
});
