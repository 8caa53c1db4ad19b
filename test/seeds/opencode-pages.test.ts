/** Shapes of opencode's pages about custom tools, plugins, permissions and agents: what runs, and what does not, with the reason. */
import type { JsonObject } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { installBun } from "../bodies/processes/bun-program.ts";
import { node, outputOf, startProcess } from "../bodies/processes/driver.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";

const files = {
  "tool/query.ts": `import { tool } from "@opencode-ai/plugin"
export default tool({
  description: "Queries",
  args: { query: tool.schema.string().describe("SQL") },
  async execute(args, context) { return "ran " + args.query + " for " + [context.agent, context.sessionID, context.messageID].join(" ") },
})`,
  "tool/numbers.ts": `import { tool } from "@opencode-ai/plugin"
const pair = { a: tool.schema.number(), b: tool.schema.number() }
export const sum = tool({ description: "Adds", args: pair, async execute(args) { return args.a + args.b } })
export const product = tool({ description: "Multiplies", args: pair, async execute({ a, b }) { return a * b } })`,
  "tool/plain.ts": `import { z } from "zod"
export default {
  description: "Without the helper",
  args: { id: z.string().describe("Which") },
  async execute(args, context) { return [args.id, context.directory === process.cwd(), typeof context.worktree].join(" ") },
}`,
  "tool/python.ts": `import { tool } from "@opencode-ai/plugin"
import path from "path"
export default tool({
  description: "Adds with Python",
  args: { a: tool.schema.number(), b: tool.schema.number() },
  async execute(args, context) {
    const result = await Bun.$\`python3 \${path.join(context.worktree, "add.py")} \${args.a} \${args.b}\`.text()
    return result.trim()
  },
})`,
  "add.py": "import sys\nprint(int(sys.argv[1]) + int(sys.argv[2]))\n",
  "plugin/all.js": `import { tool } from "@opencode-ai/plugin"
export const Everything = async ({ project, client, $, directory, worktree }) => {
  await client.app.log({ body: { service: "everything", level: "info", message: "started" } })
  return {
    event: async ({ event }) => { if (event.type === "session.idle") await $\`true\` },
    "tool.execute.before": async (input, output) => {
      if (input.tool === "read" && output.args.filePath.includes(".env")) throw new Error("Do not read .env files")
      if (input.tool === "bash") output.args.command = (await $\`echo \${output.args.command}\`.text()).trim()
    },
    "shell.env": async (input, output) => { output.env.PROJECT_ROOT = input.cwd },
    "experimental.session.compacting": async (input, output) => { output.context.push("more") },
    tool: { mytool: tool({ description: "Of a plugin", args: { foo: tool.schema.string() }, async execute(args) { return "Hello " + args.foo } }) },
  }
}`,
};

describe.each([node, installBun()])("under $name", (runtime) => {
  const tools = ["query", "numbers", "plain", "python"].map((name) => `tool/${name}.ts`);

  test("custom tools: the helper, several exports, numbers as results, the plain form, the context", async () => {
    await using started = await startProcess({ runtime, files, load: tools });
    expect(started.hello.problems).toEqual([]);
    const names = ["numbers_product", "numbers_sum", "plain", "python", "query"];
    expect(started.hello.tools.map(({ name }) => name).toSorted()).toEqual(names);
    expect(outputOf(await started.call("query", { query: "SELECT 1" }))).toBe("ran SELECT 1 for build ses_1 msg_1");
    expect(outputOf(await started.call("numbers_sum", { a: 2, b: 3 }))).toBe("5");
    expect(outputOf(await started.call("numbers_product", { a: 2, b: 3 }))).toBe("6");
    expect(outputOf(await started.call("plain", { id: "x" }))).toBe("x true string");
  });

  test("custom tools: a script in another language runs by Bun's shell, and under Node says what it needs", async () => {
    await using started = await startProcess({ runtime, files, load: tools });
    const ended = await started.call("python", { a: 2, b: 3 });
    if (runtime.name === "bun") expect(outputOf(ended)).toBe("5");
    else expect(() => outputOf(ended)).toThrow(/needs Bun|Bun is not/);
  });

  test("plugins: hooks of tools, commands and the shell run, its tools serve; events and compaction are listed as not run", async () => {
    await using started = await startProcess({ runtime, kind: "plugin", files, load: ["plugin/all.js"] });
    const { plugins, problems, tools } = started.hello;
    expect(plugins[0]?.hooks).toEqual(["tool.execute.before", "shell.env"]);
    expect(problems.map(({ reason }) => reason).join(" ")).toMatch(/event.*experimental\.session\.compacting/);
    expect(tools.map(({ name }) => name)).toEqual(["mytool"]);
    expect(outputOf(await started.call("mytool", { foo: "you" }))).toBe("Hello you");
    const hook = async (name: string, input: JsonObject, output: JsonObject) => {
      const hookId = JSON.stringify([name, input]);
      started.send({ case: "hook", value: { hookId, plugin: 0, name, input, output } });
      const hooked = await started.next((message) =>
        message.case === "hooked" && message.value.hookId === hookId ? message.value : undefined,
      );
      return hooked.outcome.value;
    };
    const call = (tool: string) => ({ tool, sessionID: "ses_1", callID: "c1" });
    expect(await hook("tool.execute.before", call("bash"), { args: { command: "ls" } })).toEqual({
      args: { command: "ls" },
    });
    expect(JSON.stringify(await hook("tool.execute.before", call("read"), { args: { filePath: ".env" } }))).toContain(
      "Do not read .env files",
    );
    expect(await hook("shell.env", { cwd: "/w" }, { env: {} })).toEqual({ env: { PROJECT_ROOT: "/w" } });
  });
});

describe("permissions and agents, in TOML", () => {
  // opencode.json is not read: its objects stand in toolgate.toml and .opencode/config.toml.
  const service = useService({
    settings: `[permission]
"*" = "ask"
read = "allow"
webfetch = "deny"
bash = { "*" = "ask", "git *" = "allow", "git push *" = "deny", "grep *" = "allow" }
external_directory = { "~/projects/*" = "allow" }
[agent.review.permission]
edit = "deny"
bash = { "*" = "deny", "git diff" = "allow", "git log*" = "allow" }
task = { "*" = "deny", "explore" = "allow" }
`,
  });
  const { ALLOW, ASK, DENY } = PermissionAction;
  const cases: readonly [shape: string, agent: string, tool: string, input: JsonObject, action: PermissionAction][] = [
    ["the last rule that matches wins: git *", "build", "bash", { command: "git status" }, ALLOW],
    ["the last rule that matches wins: git push *", "build", "bash", { command: "git push origin" }, DENY],
    ["a command without a rule asks", "build", "bash", { command: "npm test" }, ASK],
    ["a tool by its action alone", "build", "webfetch", { url: "https://example.com/" }, DENY],
    ["the star for all other tools", "build", "write", { filePath: "a.txt", content: "x" }, ASK],
    ["a directory outside by ~", "build", "read", { filePath: "~/projects/a.txt" }, ALLOW],
    ["another directory outside", "build", "read", { filePath: "/srv/a.txt" }, ASK],
    ["an agent's own rules come last", "review", "bash", { command: "git diff" }, ALLOW],
    ["an agent's own star", "review", "bash", { command: "npm test" }, DENY],
    ["an agent that does not edit", "review", "edit", { filePath: "a", oldString: "a", newString: "b" }, DENY],
  ];

  test.each(cases)("%s", async (_shape, agent, tool, input, action) => {
    expect(await connect(service, "caller").tools.planTool({ tool, agent, input })).toMatchObject({ action });
  });
});
