/** Tool files, plugins and settings of the order, as a user writes them, in a service. */
import { mkdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { toolgate } from "../cli/toolgate.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";
import { block } from "./blocks.ts";

/** Declarations that the examples of the order leave out. */
const left = {
  search: `const customSearch = async (query: string) => "found " + query;`,
  work: `const doCustomWork = async (input: string) => [input], finishWork = async (work: string[]) => "did " + work.join();`,
  command: `import { execFile } from "node:child_process";
const execCommand = (line: string, { cwd }: { cwd?: string }) => new Promise<any>((done) =>
  execFile("bash", ["-c", line], { cwd }, (error, stdout, stderr) => done({ stdout, stderr, exitCode: error ? 1 : 0, duration: 1 })));`,
};

/** A tool whose body is a fragment of code. */
const inBody = (fragment: string) => `import { tool } from "@opencode-ai/plugin";
export default tool({
  description: "Runs a fragment.",
  args: { command: tool.schema.string() },
  async execute({ command }, ctx) {
    ${fragment}
    return "went on";
  },
});`;

const files = {
  ".opencode/tool/my_tool.ts": `${left.search}\n${block("002.21")}`,
  ".opencode/tool/my_custom_tool.ts": `${left.work}\n${block("003.16")}`,
  ".opencode/tool/bash.ts": `import { Tool } from "@opencode-ai/plugin";\nimport z from "zod";\n${left.command}\n${block("003.2")}`,
  ".opencode/tool/asks.ts": inBody(block("000.8")),
  ".opencode/tool/remembers.ts": inBody(block("003.11")),
  ".opencode/plugin/example.ts": block("002.22"),
  ".opencode/config.toml": `${block("002.23")}\n${block("003.17").replace("[permission]\n", "")}asks = "allow"\nremembers = "allow"\n`,
};

/** The agent of 002.24: the block is an object of JavaScript, with a comment. */
const explore: { permission: Record<string, string> } = new Function(
  `return (${block("002.24").replace(/^\/\/.*\n/, "")})`,
)();
const settings = `[agent.explore.permission]\n${Object.entries(explore.permission)
  .map(([permission, action]) => `${JSON.stringify(permission)} = ${JSON.stringify(action)}\n`)
  .join("")}`;

const service = useService({ settings });
beforeAll(async () => {
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(join(service.workspace, path)), { recursive: true });
    await writeFile(join(service.workspace, path), text);
  }
  await toolgate(["trust", service.workspace, "--data", service.data, "--config", service.config]);
});

const agent = () => connect(service, "caller");

/** Calls a tool, and answers each of its requests. Returns the end of the call and the requests. */
async function call(tool: string, input: Record<string, string>, reply: PermissionReply = PermissionReply.ONCE) {
  const { tools, newSession } = agent();
  const { permissions } = connect(service, "approver");
  const sessionId = await newSession();
  const requests: { permission: string; patterns: string[]; metadata: unknown; offers: string[] }[] = [];
  for await (const { event } of tools.executeTool({ sessionId, callId: "c1", tool, input })) {
    if (event?.event.case !== "permissionAsked") continue;
    const { id: permissionId, permission, patterns, metadata, offers } = event.event.value;
    requests.push({ permission, patterns, metadata, offers: offers.map(({ match }) => String(match?.match.value)) });
    await permissions.respondToPermission({ sessionId, permissionId, reply });
  }
  const { part } = await tools.getToolPart({ sessionId, callId: "c1" });
  return { end: part?.state.value, requests };
}

test("rows 137, 138, 168, 194: tool files and plugins of a trusted workspace are tools", async () => {
  const { tools, problems } = await agent().tools.listTools({ agent: "free" });
  expect(problems).toEqual([]);
  const own = ["asks", "bash", "custom_tool", "my_custom_tool", "my_tool", "remembers"];
  expect(tools.map(({ name }) => name)).toEqual(expect.arrayContaining(own));
});

test("rows 1, 15, 141: Tool.define with args runs", async () => {
  expect(await call("my_tool", { query: "x" })).toMatchObject({ end: { output: "found x" } });
});

test("rows 192, 193, 166: the custom tool asks once by its rule, and shows its progress", async () => {
  const { end, requests } = await call("my_custom_tool", { input: "test" });
  expect(requests.map(({ permission }) => permission)).toEqual(["my_custom_tool"]);
  expect(end).toMatchObject({
    title: "Custom work completed",
    output: "did test",
    metadata: { progress: 50, status: "success" },
  });
});

test("rows 142, 138: a plugin of definePlugin is a tool; its body is empty, so its call fails by name", async () => {
  expect(await call("custom_tool", {})).toMatchObject({ end: { error: expect.stringContaining("custom_tool") } });
});

test("row 163: the bash of the order asks for its command line, and runs it", async () => {
  const { end, requests } = await call("bash", { command: "echo hi", description: "Says hi" });
  expect(requests).toMatchObject([{ permission: "bash", patterns: ["echo hi"] }]);
  expect(end).toMatchObject({ title: "Executed: Says hi", output: "hi\n", metadata: { exitCode: 0 } });
});

describe("an ask in a body", () => {
  test("rows 13, 42, 167: is a request with its patterns and metadata, and the body goes on", async () => {
    const { end, requests } = await call("asks", { command: "git log" });
    const metadata = { command: "git log", cwd: service.workspace };
    expect(requests).toMatchObject([{ permission: "bash", patterns: ["git log"], metadata }]);
    expect(end).toMatchObject({ output: "went on" });
  });

  test("rows 43, 149: ends the body if a person rejects it", async () => {
    const { end } = await call("asks", { command: "git log" }, PermissionReply.REJECT);
    expect(end).toMatchObject({ error: expect.any(String) });
  });

  test("row 185: `always` is what an approver may remember, so it asks for nothing else", async () => {
    const { requests } = await call("remembers", { command: "x" });
    expect(requests).toMatchObject([
      { permission: "external_directory" },
      { permission: "bash", patterns: ["/etc/hosts"] },
    ]);
    expect(requests[1]?.offers).not.toContain("sensitive-file");
  });
});

describe("rules of the workspace's config.toml", () => {
  const rows: readonly [row: string, tool: string, input: Record<string, string>, action: PermissionAction][] = [
    ["row 143: bash asks", "bash", { command: "echo hi", description: "" }, PermissionAction.ASK],
    ["row 144: read is allowed", "read", { filePath: "a.txt" }, PermissionAction.ALLOW],
    ["rows 92, 144: read of .env is denied", "read", { filePath: ".env" }, PermissionAction.DENY],
    ["row 145: edit is allowed", "write", { filePath: "a.txt", content: "x" }, PermissionAction.ALLOW],
  ];

  test.each(rows)("%s", async (_row, tool, input, action) => {
    await writeFile(join(service.workspace, ".env"), "A=1");
    expect(await agent().tools.planTool({ tool, agent: "build", input })).toMatchObject({ action });
  });
});

test("rows 30, 147, 172: an agent sees only the tools that its rules allow", async () => {
  const { tools } = await agent().tools.listTools({ agent: "explore" });
  const names = tools.map(({ name }) => name);
  expect(names).toEqual(expect.arrayContaining(["grep", "glob", "read", "bash"]));
  expect(names).not.toEqual(expect.arrayContaining(["write"]));
  expect(names).not.toEqual(expect.arrayContaining(["my_tool"]));
});
