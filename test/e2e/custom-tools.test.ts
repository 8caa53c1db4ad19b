import { mkdir, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import {
  GrantScope,
  PermissionAction,
  PermissionLayer,
  PermissionReason,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { toolgate } from "../cli/toolgate.ts";
import { emptyDirectory } from "../empty-directory.ts";
import { connect } from "./clients.ts";
import { createService, type Service, type ServiceOptions, startService, useService } from "./service.ts";

const root = join(import.meta.dirname, "../..");

/** The service of all tests that need no settings and no restart. */
// Packages that links in a configuration's node_modules lead to.
const shared = useService({
  settings: `[sandbox]
readable = [${JSON.stringify(join(root, "node_modules"))}]
[permission.pay_bill]
"*" = { action = "allow", when = "input.amount <= 100" }
[permission.pay_rent]
"*" = { action = "allow", when = "input.amuont <= 100" }
`,
});
/** The tools without any file. */
const builtIn = new Set<string>();
beforeAll(async () => {
  for (const { name } of (await connect(shared, "caller").tools.listTools({})).tools) builtIn.add(name);
});
afterEach(() => {
  emptyDirectory(dirname(shared.config), [".config", "data", "toolgate.toml", "workspace"]);
  emptyDirectory(shared.workspace);
});

/** Writes files into the folder of the user's own configuration. */
async function writeTools(service: Pick<Service, "config">, files: Record<string, string>): Promise<void> {
  await writeFiles(dirname(service.config), files);
}

async function writeFiles(folder: string, files: Record<string, string>): Promise<void> {
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await writeFile(join(folder, path), text);
  }
}

/** A running service that has tools of the user's; a new one only for options. */
async function serveWith(files: Record<string, string>, options?: ServiceOptions): Promise<Service> {
  const service = options === undefined ? shared : await startService(options);
  await writeTools(service, files);
  return service;
}

async function list(service: Service) {
  const { tools, problems } = await connect(service, "caller").tools.listTools({ agent: "free" });
  const custom = tools.filter(({ name }) => !builtIn.has(name));
  return { names: custom.map(({ name }) => name), tools: custom, problems };
}

/** Calls a tool as the agent that may do everything. */
async function call(service: Service, tool: string, input = {}, fields = {}) {
  const { tools } = connect(service, "caller");
  const { part } = await tools.callTool({ tool, input, agent: "free", ...fields });
  return part?.state.value;
}

async function trust(service: Service, ...flags: string[]): Promise<string> {
  const paths = ["--data", service.data, "--config", service.config];
  const { stdout } = await toolgate(["trust", service.workspace, ...paths, ...flags]);
  return stdout;
}

const hello = `
import { tool } from "@opencode-ai/plugin";
export default tool({
  description: "Say hello.",
  args: { name: tool.schema.string().describe("Whom to greet") },
  async execute(args) { return "hello " + args.name; },
});
`;

describe("a file of tools", () => {
  test("is a tool under its name, its other exports behind it; what is no tool is none", async () => {
    const service = await serveWith({
      "tool/greet.ts": `${hello}
import { Tool, z } from "toolgate/plugin";
export const loud = Tool.define({ description: "Say it loud.", args: { name: { type: "string", description: "Who" } },
  execute: async (args: { name: string }) => ({ title: "LOUD", output: "HELLO " + args.name.toUpperCase(), metadata: { loud: true } }) });
export const helper = (text: string) => text;
export const word = "hello";
`,
      "tools/plain.js": `export default { description: "Plain.", args: {}, execute: () => "plain" };`,
      "tool/named.ts": `import { Tool } from "@opencode-ai/plugin"
import z from "zod"
export default Tool.define("my_custom_tool", async () => ({
  description: "Does something custom",
  parameters: z.object({ input: z.string().describe("Input parameter"), option: z.boolean().optional() }),
  async execute(params, ctx) {
    await ctx.ask({ permission: "my_custom_tool", patterns: [params.input] })
    await ctx.metadata({ progress: 50 })
    return { title: "Custom work completed", output: params.input, metadata: { status: "success" } }
  },
}))`,
    });
    expect(await list(service)).toMatchObject({
      names: ["greet", "greet_loud", "my_custom_tool", "plain"],
      problems: [],
    });
    expect(await call(service, "greet", { name: "Ada" })).toMatchObject({ output: "hello Ada", title: "greet" });
    expect(await call(service, "greet_loud", { name: "Ada" })).toMatchObject({
      title: "LOUD",
      output: "HELLO ADA",
      metadata: { loud: true },
    });
    expect(await call(service, "my_custom_tool", { input: "x" })).toMatchObject({
      title: "Custom work completed",
      output: "x",
    });
    expect(await call(service, "greet", { name: 3 })).toMatchObject({ reason: ToolErrorReason.INVALID_INPUT });
    expect(await call(service, "greet_loud", {})).toMatchObject({ reason: ToolErrorReason.INVALID_INPUT });
  });

  test("is judged by its input; a condition on a field that it does not have is logged once, and the call asks", async () => {
    const pays = `export default { description: "Pays.", args: { amount: { type: "number" } }, execute: () => "paid" };`;
    const service = await serveWith({ "tool/pay_bill.js": pays, "tool/pay_rent.js": pays });
    const { tools } = connect(service, "caller");
    const actionOf = async (tool: string, amount: number) => (await tools.planTool({ tool, input: { amount } })).action;
    expect(await actionOf("pay_bill", 100)).toBe(PermissionAction.ALLOW);
    expect(await actionOf("pay_bill", 101)).toBe(PermissionAction.ASK);
    expect(await actionOf("pay_rent", 1)).toBe(PermissionAction.ASK);
    const log = await readFile(join(service.data, "log", "toolgate.log"), "utf8");
    expect(log.match(/the condition of pay_\w+ .*? What it would allow asks/g)).toEqual([
      expect.stringMatching(/ of pay_rent .* does not fit the input of pay_rent: it has no input\.amuont; /),
    ]);
  });

  test("shows what it passes to metadata() under other keys, such as progress", async () => {
    const service = await serveWith({
      "tool/slow.js": `export default { description: "Slow.", args: {}, async execute(args, ctx) {
  await ctx.metadata({ title: "half", progress: 50 });
  await ctx.metadata({ progress: 75, metadata: { step: 3 } });
  return "done";
} };`,
    });
    await list(service);
    expect(await call(service, "slow", {})).toMatchObject({ title: "half", metadata: { progress: 75, step: 3 } });
  });

  test("asks before it runs, unless a rule allows it", async () => {
    const service = await serveWith({ "tool/greet.ts": hello });
    await list(service);
    const { tools, newSession } = connect(service, "caller");
    const sessionId = await newSession();
    for await (const { event } of tools.executeTool({
      sessionId,
      callId: "c1",
      tool: "greet",
      input: { name: "Ada" },
    })) {
      if (event?.event.case !== "permissionAsked") continue;
      expect(event.event.value).toMatchObject({ permission: "greet", patterns: ['{"name":"Ada"}'] });
      return;
    }
    expect.unreachable("it was not asked");
  });

  describe("whose body asks", () => {
    const asker = `export default { description: "Asks.", args: { cmd: { type: "string" } }, async execute({ cmd }, ctx) {
  await ctx.ask({ permission: "runner", patterns: [cmd], always: ["git *"], metadata: {} });
  return "ran " + cmd;
} };`;

    /** Calls the tool as the agent of the default configuration; answers each request, and returns their permissions. */
    async function requestsOf(service: Service, cmd: string, offered?: string) {
      const { tools, newSession } = connect(service, "caller");
      const { permissions } = connect(service, "approver");
      const sessionId = await newSession();
      const asked: string[] = [];
      for await (const { event } of tools.executeTool({ sessionId, callId: "c1", tool: "asker", input: { cmd } })) {
        if (event?.event.case !== "permissionAsked") continue;
        const { id: permissionId, permission, offers } = event.event.value;
        asked.push(permission);
        const offer = offers.find(({ scope, match }) => scope === GrantScope.PROJECT && match?.match.value === offered);
        const reply = offer ? PermissionReply.ALWAYS : PermissionReply.ONCE;
        await permissions.respondToPermission({ sessionId, permissionId, reply, ...(offer && { offerId: offer.id }) });
      }
      const { part } = await tools.getToolPart({ sessionId, callId: "c1" });
      expect(part?.state.value).toMatchObject({ output: `ran ${cmd}` });
      return asked;
    }

    test("asks an approver once", async () => {
      const service = await serveWith({ "tool/asker.js": asker });
      expect(await requestsOf(service, "git log")).toEqual(["asker"]);
    });

    test("offers its always patterns, which cover later calls", async () => {
      const service = await serveWith({ "tool/asker.js": asker }, { settings: '[permission]\nasker = "allow"\n' });
      expect(await requestsOf(service, "git log", "git *")).toEqual(["runner"]);
      expect(await requestsOf(service, "git diff")).toEqual([]);
      expect(await requestsOf(service, "npm test")).toEqual(["runner"]);
    });

    test("asks again where a rule asks", async () => {
      const service = await serveWith({ "tool/asker.js": asker }, { settings: '[permission]\nrunner = "ask"\n' });
      expect(await requestsOf(service, "git log")).toEqual(["asker", "runner"]);
    });
  });

  describe("named bash, with several fields", () => {
    // The example of the document from which tool files were ordered, with the function that it leaves out.
    const bash = `import { Tool } from "@opencode-ai/plugin"
import z from "zod"
import { execFile } from "node:child_process"
const execCommand = (line, { cwd }) => new Promise((done) => {
  const begun = Date.now()
  execFile("bash", ["-c", line], { cwd }, (error, stdout, stderr) =>
    done({ stdout, stderr, exitCode: error ? 1 : 0, duration: Date.now() - begun }))
})
export const BashTool = Tool.define("bash", async () => {
  return {
    description: "Execute bash commands",
    parameters: z.object({
      command: z.string().describe("The command to execute"),
      timeout: z.number().optional().describe("Timeout in milliseconds"),
      workdir: z.string().optional().describe("Working directory"),
      description: z.string().describe("Clear description of what this command does"),
    }),

    async execute(params, ctx) {
      // Permission check
      await ctx.ask({
        permission: "bash",
        patterns: [params.command],
      })

      // Execute command
      const result = await execCommand(params.command, {
        cwd: params.workdir,
        timeout: params.timeout,
      })

      return {
        title: \`Executed: \${params.description}\`,
        output: result.stdout + result.stderr,
        metadata: {
          exitCode: result.exitCode,
          duration: result.duration,
        },
      }
    },
  }
})
`;
    const settings = '[agent.echo.permission]\nbash = { "*" = "ask", "echo *" = "allow" }\n';
    const description = "Says hi";

    async function planned(service: Service, input: Record<string, string>) {
      const { action, asks } = await connect(service, "caller").tools.planTool({ tool: "bash", agent: "echo", input });
      return { action, asks: asks.map(({ permission, patterns }) => [permission, patterns]) };
    }

    test("is judged by its command line and asks for nothing else", async () => {
      const service = await serveWith({ "tool/bash.ts": bash }, { settings });
      expect((await list(service)).problems).toEqual([]);
      const { ASK, ALLOW } = PermissionAction;
      expect(await planned(service, { command: "echo hi", description })).toEqual({ action: ALLOW, asks: [] });
      expect(await planned(service, { command: "date", description })).toEqual({
        action: ASK,
        asks: [["bash", ["date"]]],
      });
      expect(await planned(service, { command: "echo hi; rm -rf x", description })).toMatchObject({ action: ASK });
      expect(await planned(service, { command: "cat notes.txt", description, workdir: "src" })).toEqual({
        action: ASK,
        asks: [["bash", ["cat notes.txt"]]],
      });
      expect(await planned(service, { command: "echo hi", description, workdir: "/srv" })).toEqual({
        action: ASK,
        asks: [["external_directory", ["/srv/*"]]],
      });
      const ran = await call(service, "bash", { command: "echo hi", description }, { agent: "echo" });
      expect(ran).toMatchObject({ title: "Executed: Says hi", output: "hi\n", metadata: { exitCode: 0 } });
    });
  });

  test("that is broken is listed with its line, and the other tools stay", async () => {
    const service = await serveWith({
      "tool/greet.ts": hello,
      "tool/syntax.ts": "export const a = 1;\nexport const b = );\n",
      "tool/throws.ts": 'const a = 1;\n\nthrow new Error("no database");\n',
      "tool/import.ts": '\nimport { x } from "./lib/missing.ts";\nexport default x;\n',
      "tool/deep.ts": 'import "./lib/deep.ts";\n',
      "tool/lib/deep.ts": "\n\n\nfail();\n",
      "tool/empty.ts": "export const a = 1;\n",
      "tool/mixed.ts":
        'import { z } from "zod"; export default { description: "", args: { a: z.string(), b: {} }, execute() {} };',
      "tool/not a name.ts": hello,
    });
    const { names, problems } = await list(service);
    expect(names).toEqual(["greet"]);
    const folder = join(dirname(service.config), "tool");
    expect(problems.map(({ path, line, reason }) => [path.slice(folder.length + 1), line, reason])).toEqual([
      ["lib/deep.ts", 4, "fail is not defined"],
      ["empty.ts", 0, expect.stringMatching(/^it exports no tool/)],
      ["import.ts", 2, "there is no file ./lib/missing.ts"],
      ["mixed.ts", 0, expect.stringContaining("args of both zod and JSON Schema")],
      ["not a name.ts", 0, expect.stringContaining('"not a name" cannot be a tool\'s name')],
      ["syntax.ts", 2, expect.stringContaining("Unexpected token")],
      ["throws.ts", 3, "no database"],
    ]);
    expect(await call(service, "greet", { name: "Ada" })).toMatchObject({ output: "hello Ada" });
  });

  test("is reloaded when it, or a module that it imports, changes; a call of the definition of before is stale", async () => {
    const service = await serveWith({
      "tool/count.ts": `import { word } from "./lib/word";\nexport default { description: "One.", args: {}, execute: () => word };`,
      "tool/lib/word.ts": 'export const word: string = "one";',
      "tool/greet.ts": hello,
    });
    const before = await list(service);
    expect(await call(service, "count")).toMatchObject({ output: "one" });
    await writeTools(service, { "tool/lib/word.ts": 'export const word: string = "two";' });
    expect(await call(service, "count")).toMatchObject({ output: "two" });
    const definitionId = before.tools.find(({ name }) => name === "count")?.definitionId;
    expect(await call(service, "count", {}, { definitionId })).toMatchObject({ reason: ToolErrorReason.STALE_TOOL });
    await writeTools(service, { "tool/count.ts": "export default {;" });
    expect(await list(service)).toMatchObject({
      names: ["count", "greet"],
      problems: [{ line: 1, reason: expect.stringContaining("the version before it still serves") }],
    });
    await rm(join(dirname(service.config), "tool/count.ts"));
    expect(await list(service)).toMatchObject({ names: ["greet"], problems: [] });
  });

  test("is what the next call resolves, each time that it or code outside its directory is saved", async () => {
    const service = await serveWith({
      "tool/count.ts":
        'import { word } from "../lib/word"; export default { description: "One.", args: {}, execute: () => word };',
      "lib/word.ts": 'export const word: string = "w0";',
    });
    expect(await call(service, "count")).toMatchObject({ output: "w0" });
    for (const word of ["w1", "w2", "w3"]) {
      await writeTools(service, { "lib/word.ts": `export const word: string = "${word}";` });
      expect(await call(service, "count")).toMatchObject({ output: word });
    }
    await writeTools(service, {
      "tools/later.js": 'export default { description: "L.", args: {}, execute: () => "l" };',
    });
    expect(await call(service, "later")).toMatchObject({ output: "l" });
    await rm(join(dirname(service.config), "tools"), { recursive: true });
    expect(await call(service, "later")).toMatchObject({ reason: ToolErrorReason.UNKNOWN_TOOL });
  });

  test("has the same definition id wherever it lies, and another one if local code that it imports is different", async () => {
    const files = {
      "tool/count.ts":
        'import { word } from "../lib/word"; import { end } from "./end";\nexport default { description: "One.", args: {}, execute: () => word + end };',
      "tool/end.ts":
        'export const end: string = "!"; export default { description: "End.", args: {}, execute: () => end };',
      "lib/word.ts": 'export { word } from "./deep";',
      "lib/deep.ts": 'export const word: string = "one";',
    };
    const idOf = async (changed: Record<string, string>, options?: ServiceOptions) => {
      const service = await serveWith({ ...files, ...changed }, options);
      return (await list(service)).tools.find(({ name }) => name === "count")?.definitionId;
    };
    const first = await idOf({});
    expect(await idOf({ "tool/other.ts": hello }, {})).toBe(first);
    expect(await idOf({ "lib/deep.ts": 'export const word: string = "two";' })).not.toBe(first);
    expect(await idOf({ "tool/end.ts": files["tool/end.ts"].replace("!", "?") })).not.toBe(first);
  });

  test("that is replaced while it runs ends as it began", async () => {
    const body = (word: string) => `import { existsSync, writeFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
export default { description: "Waits.", args: {}, async execute(_, ctx) {
  writeFileSync(ctx.directory + "/entered", "");
  while (!existsSync(ctx.directory + "/go")) await delay(5);
  return "${word}";
} };`;
    const service = await serveWith({ "tool/wait.js": body("old") });
    const running = call(service, "wait");
    const { newSession } = connect(service, "caller");
    await untilFile(join(service.workspace, "entered"));
    await writeTools(service, { "tool/wait.js": body("new") });
    await writeFile(join(service.workspace, "go"), "");
    expect(await running).toMatchObject({ output: "old" });
    await newSession();
    expect(await call(service, "wait")).toMatchObject({ output: "new" });
  });
});

test("a tool of npm's @opencode-ai/plugin loads unchanged, with the package's own zod", async () => {
  const service = shared;
  const packages = join(dirname(service.config), "node_modules/@opencode-ai");
  await mkdir(packages, { recursive: true });
  await symlink(join(root, "node_modules/@opencode-ai/plugin"), join(packages, "plugin"));
  await mkdir(join(service.workspace, ".git"));
  await writeTools(service, {
    "tool/project.ts": `
import { tool } from "@opencode-ai/plugin";
import { z } from "zod";

export default tool({
  description: "Describe the project",
  args: {
    depth: tool.schema.number().int().default(2).describe("How deep to look"),
    kind: tool.schema.enum(["short", "long"]).describe("How much to say"),
  },
  async execute(args, ctx) {
    const { sessionID, messageID, agent, directory, worktree, abort } = ctx;
    ctx.metadata({ title: "looking", metadata: { depth: args.depth } });
    await ctx.ask({ permission: "read", patterns: [directory + "/secret.env"], always: ["*"], metadata: {} });
    return JSON.stringify({ sameZod: tool.schema === z, args, sessionID, messageID, agent, directory, worktree, aborted: abort.aborted });
  },
});

export const picture = tool({
  description: "Draw",
  args: {},
  async execute() {
    return { title: "Drawn", output: "a dot", metadata: { dots: 1 }, attachments: [{ type: "file", mime: "image/png", url: "data:image/png;base64,iVBORw0KGgo=" }] } as any;
  },
});

export const failing = tool({
  description: "Fail",
  args: {},
  async execute() { throw new Error("File not found: a.txt"); },
});
`,
  });
  const { tools, names, problems } = await list(service);
  expect([names, problems]).toEqual([["project", "project_failing", "project_picture"], []]);
  expect(tools[0]?.inputSchema).toMatchObject({
    properties: {
      depth: { type: "integer", default: 2, description: "How deep to look" },
      kind: { enum: ["short", "long"], description: "How much to say" },
    },
    required: ["kind"],
  });
  const sessionId = await connect(service, "caller").newSession();
  const state = await call(service, "project", { kind: "short" }, { sessionId, messageId: "msg_1" });
  expect(state).toMatchObject({ title: "looking", metadata: { depth: 2 } });
  expect(JSON.parse(state && "output" in state ? state.output : "{}")).toEqual({
    sameZod: false,
    args: { depth: 2, kind: "short" },
    ...{ sessionID: sessionId, messageID: "msg_1", agent: "free", aborted: false },
    ...{ directory: service.workspace, worktree: service.workspace },
  });
  expect(await call(service, "project_picture")).toMatchObject({
    title: "Drawn",
    metadata: { dots: 1 },
    attachments: [{ mime: "image/png", url: "data:image/png;base64,iVBORw0KGgo=" }],
  });
  expect(await call(service, "project_failing")).toMatchObject({
    reason: ToolErrorReason.FAILED,
    error: "File not found: a.txt",
  });
});

describe("a workspace's own tools", () => {
  test("run only as they were when they were trusted, and stand before others of their name", async () => {
    const service = await serveWith({ "tool/greet.ts": hello });
    const theirs = (word: string) => ({
      ".opencode/tool/greet.ts": `import { writeFileSync } from "node:fs"; writeFileSync(${JSON.stringify(service.workspace)} + "/ran-${word}", "");
export default { description: "Theirs.", args: {}, execute: () => "${word}" };`,
    });
    await writeFiles(service.workspace, theirs("first"));
    expect((await list(service)).problems).toMatchObject([
      {
        path: join(service.workspace, ".opencode"),
        reason: expect.stringContaining(`toolgate trust ${service.workspace}`),
      },
    ]);
    expect(await call(service, "greet", { name: "Ada" })).toMatchObject({ output: "hello Ada" });
    await expect(readFile(join(service.workspace, "ran-first"))).rejects.toThrow("ENOENT");

    expect(await trust(service)).toBe(`${service.workspace} is trusted\n  .opencode/tool/greet.ts\n`);
    expect(await list(service)).toMatchObject({ names: ["greet"], problems: [] });
    expect(await call(service, "greet")).toMatchObject({ output: "first" });

    // As an agent that may edit the workspace could do.
    await writeFiles(service.workspace, theirs("second"));
    expect((await list(service)).problems).toMatchObject([
      { reason: expect.stringContaining("has changed since it was trusted") },
    ]);
    expect(await call(service, "greet")).toMatchObject({ output: "first" });
    await expect(readFile(join(service.workspace, "ran-second"))).rejects.toThrow("ENOENT");

    await trust(service);
    expect(await call(service, "greet")).toMatchObject({ output: "second" });
    expect(await trust(service, "--remove")).toContain("no longer trusted");
    expect(await call(service, "greet", { name: "Ada" })).toMatchObject({ output: "hello Ada" });
  });

  test("import nothing later that was changed since they were trusted", async () => {
    const service = await startService();
    await writeFiles(service.workspace, {
      ".opencode/tool/late.ts":
        'export default { description: "", args: {}, execute: async () => (await import("./lib/word.ts")).word };',
      ".opencode/tool/lib/word.ts": 'export const word: string = "trusted";',
    });
    await trust(service);
    expect((await list(service)).names).toEqual(["late"]);
    await writeFiles(service.workspace, { ".opencode/tool/lib/word.ts": 'export const word: string = "other";' });
    expect(await call(service, "late")).toMatchObject({
      error: expect.stringContaining("word.ts has changed since it was trusted"),
    });
    await trust(service);
    expect(await call(service, "late")).toMatchObject({ output: "other" });
  });

  test("that were changed while the service was down are not loaded when it comes up", async () => {
    const service = await startService();
    await writeFiles(service.workspace, {
      ".opencode/tools/one.js": `export default { description: "", args: {}, execute: () => "one" };`,
    });
    await trust(service);
    expect((await list(service)).names).toEqual(["one"]);
    await service.stop();
    await writeFiles(service.workspace, { ".opencode/lib/evil.js": "export {};" });
    await service.start();
    expect(await list(service)).toMatchObject({
      names: [],
      problems: [{ reason: expect.stringContaining("has changed") }],
    });
  });
});

describe("a plugin", () => {
  const settings = 'plugin = ["plugins/guard.ts"]\n';

  /** Starts a service whose plugin is there before. */
  async function startWith(source: string): Promise<Service> {
    const service = createService({ settings: "" });
    await service.start();
    await service.stop();
    await writeTools(service, { "plugins/guard.ts": source });
    await writeFile(service.config, settings + (await readFile(service.config, "utf8")));
    return service;
  }

  async function started(source: string): Promise<Service> {
    const service = await startWith(source);
    await service.start();
    return service;
  }

  test("brings tools and hooks, and is reloaded when it changes", async () => {
    const source = (word: string) => `import { definePlugin } from "toolgate/plugin";
export default definePlugin({
  name: "example",
  tool: { custom_tool: { args: { query: { type: "string" } }, description: "Search", execute: async (args) => "found " + args.query } },
  "tool.execute.before": (input, output) => { if (input.tool === "custom_tool") output.args.query += "${word}"; },
});`;
    const service = await started(source("!"));
    try {
      expect(await call(service, "custom_tool", { query: "x" })).toMatchObject({ output: "found x!" });
      await writeTools(service, { "plugins/guard.ts": source("?!") });
      expect(await call(service, "custom_tool", { query: "x" })).toMatchObject({ output: "found x?!" });
    } finally {
      await service.close();
    }
  });

  test("written for opencode as a function guards calls", async () => {
    const service = await started(`
export const EnvProtection = async ({ project, client, $, directory, worktree }) => {
  return {
    "tool.execute.before": async (input, output) => {
      if (input.tool === "read" && output.args.filePath.includes(".env")) throw new Error("Do not read .env files");
    },
  };
};`);
    try {
      expect(await call(service, "read", { filePath: ".env" })).toMatchObject({
        error: "The hook tool.execute.before of the plugin guard stopped this: Do not read .env files.",
      });
    } finally {
      await service.close();
    }
  });

  test("may be a package that is installed beside the configuration; a missing one is reported", async () => {
    const service = createService({ settings: 'plugin = ["@acme/guard", "acme-old"]' });
    try {
      await expect(service.start()).rejects.toThrow(/@acme\/guard is not a path.*npm install @acme\/guard/);
      const plugin = (name: string) =>
        `{ name: "${name}", tool: { ${name}: { args: {}, description: "x", execute: async () => "from ${name}" } } }`;
      await writeTools(service, {
        "node_modules/@acme/guard/package.json":
          '{"name": "@acme/guard", "type": "module", "exports": {".": {"import": "./lib/main.js"}}}',
        "node_modules/@acme/guard/lib/main.js": `export default ${plugin("scoped")};`,
        "node_modules/acme-old/package.json": '{"name": "acme-old", "main": "index.mjs"}',
        "node_modules/acme-old/index.mjs": `export const old = ${plugin("old")};`,
      });
      await service.start();
      expect(await call(service, "scoped")).toMatchObject({ output: "from scoped" });
      expect(await call(service, "old")).toMatchObject({ output: "from old" });
    } finally {
      await service.close();
    }
  });

  test("that cannot be loaded is not gone without: the service does not start", async () => {
    const service = await startWith('\nthrow new Error("no key");\n');
    try {
      await expect(service.start()).rejects.toThrow(
        /plugins\/guard\.ts, line 2, is not loaded and may guard calls: no key/,
      );
    } finally {
      await service.close();
    }
  });
});

describe("the policy file of a workspace", () => {
  const allowWrites = '[permission]\nedit = { "*" = "allow" }\n';
  const actionOf = async (service: Service) =>
    (await connect(service, "caller").tools.planTool({ tool: "write", input: { filePath: "a.txt", content: "x" } }))
      .action;

  test("allows more than the configuration if it is trusted as it is, and only narrows after a change", async () => {
    const service = await startService({ settings: '[permission]\nedit = "ask"\n' });
    await writeFiles(service.workspace, { ".opencode/config.toml": allowWrites });
    expect(await actionOf(service)).toBe(PermissionAction.ASK);
    await trust(service);
    expect(await actionOf(service)).toBe(PermissionAction.ALLOW);
    const { lists } = await connect(service, "approver").permissions.listRules({});
    expect(lists.map(({ layer }) => layer)).toContain(PermissionLayer.WORKSPACE);
    await writeFiles(service.workspace, { ".opencode/config.toml": `${allowWrites}# changed\n` });
    expect(await actionOf(service)).toBe(PermissionAction.ASK);
    await trust(service);
    expect(await actionOf(service)).toBe(PermissionAction.ALLOW);
    await trust(service, "--remove");
    expect(await actionOf(service)).toBe(PermissionAction.ASK);
  });

  test("is a problem in a trusted workspace while it is not trusted as it is, with the command that trusts it", async () => {
    const service = await startService();
    const path = join(service.workspace, ".opencode/config.toml");
    const problems = async () => (await list(service)).problems;
    const problem = (state: string) => [
      { path, reason: expect.stringMatching(RegExp(`${state}.*only narrow.*: toolgate trust ${service.workspace}$`)) },
    ];
    await writeFiles(service.workspace, { ".opencode/config.toml": allowWrites });
    expect(await problems()).toEqual([]);
    await trust(service);
    expect(await problems()).toEqual([]);
    await writeFiles(service.workspace, { ".opencode/config.toml": `${allowWrites}# changed\n` });
    expect(await problems()).toMatchObject(problem("has changed since it was trusted"));
    await actionOf(service);
    const logged = async () =>
      (await readFile(join(service.data, "log/toolgate.log"), "utf8"))
        .split("\n")
        .filter((line) => line.includes("a policy file only narrows"));
    await vi.waitUntil(async () => (await logged()).length > 0, { timeout: 30_000 });
    expect(await logged()).toEqual([expect.stringContaining(`toolgate trust ${service.workspace}`)]);
    await rm(path);
    await trust(service);
    await writeFiles(service.workspace, { ".opencode/config.toml": allowWrites });
    expect(await problems()).toMatchObject(problem("was added after the workspace was trusted"));
    await trust(service);
    expect(await problems()).toEqual([]);
  });
});

describe("a guard that is not loaded", () => {
  const plugin = 'export default { name: "guard", "tool.execute.before": () => {} };';
  const denied = {
    reason: ToolErrorReason.GUARD_NOT_LOADED,
    effects: ToolEffects.NONE,
    error: expect.stringContaining('[workspace_plugins] default = "optional"'),
  };
  const echo = (service: Service) => call(service, "echo", { text: "x" });

  async function serveWorkspace(settings?: string, guard = plugin): Promise<Service> {
    const service = settings === undefined ? shared : await startService({ settings });
    await writeFiles(service.workspace, { ".opencode/plugin/notify.ts": plugin, ".opencode/plugins/guard.js": guard });
    return service;
  }
  const broken = "export default {;";

  test("of an untrusted workspace is listed, and denies nothing", async () => {
    const service = await serveWorkspace();
    expect(await echo(service)).toMatchObject({ output: "x" });
    expect((await list(service)).problems.map(({ path }) => path)).toEqual([
      join(service.workspace, ".opencode/plugin/notify.ts"),
      join(service.workspace, ".opencode/plugins/guard.js"),
    ]);
  });

  test("of a trusted workspace denies each call, plan and explanation, until it is gone", async () => {
    const service = await serveWorkspace("", broken);
    await writeFiles(service.workspace, { ".opencode/config.toml": "" });
    const trusted = ["plugin/notify.ts", "plugins/guard.js", "config.toml"];
    const lines = trusted.map((file) => `  .opencode/${file}\n`).join("");
    expect(await trust(service)).toBe(`${service.workspace} is trusted\n${lines}`);
    expect(await echo(service)).toMatchObject(denied);
    const { tools, permissions } = connect(service, "caller");
    const planned = await tools.planTool({ tool: "echo", input: { text: "x" }, agent: "free" });
    expect(planned).toMatchObject({
      action: PermissionAction.DENY,
      problem: { reason: ToolErrorReason.GUARD_NOT_LOADED, message: denied.error },
    });
    const explained = await permissions.explainPermission({ permission: "read", patterns: ["a"], agent: "free" });
    expect(explained).toMatchObject({
      action: PermissionAction.DENY,
      decisions: [{ reasonCode: PermissionReason.GUARD_NOT_LOADED, reason: denied.error }],
    });
    const guard = join(service.workspace, ".opencode/plugins/guard.js");
    expect((await list(service)).problems).toMatchObject([{ path: guard }]);
    await rm(join(service.workspace, ".opencode"), { recursive: true });
    expect(await echo(service)).toMatchObject({ output: "x" });
  });

  test("of a trusted workspace denies a call that was waiting for its answer when the guard came", async () => {
    const service = await serveWorkspace("");
    await trust(service);
    await rm(join(service.workspace, ".opencode"), { recursive: true });
    const { tools, newSession } = connect(service, "caller");
    const { permissions } = connect(service, "approver");
    const answered = async (guard: () => Promise<unknown>) => {
      const sessionId = await newSession();
      const waiting = { sessionId, callId: "c1", tool: "bash", input: { command: "echo ran" } };
      await tools.callTool({ ...waiting, waitMs: 0 });
      const requests = async () => (await permissions.listPermissions({ sessionId })).permissions;
      await expect.poll(requests).toHaveLength(1);
      await guard();
      const [{ id: permissionId = "" } = {}] = await requests();
      await permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
      return (await tools.callTool(waiting)).part?.state.value;
    };
    expect(await answered(async () => undefined)).toMatchObject({ output: "ran\n" });
    const guard = () => writeFiles(service.workspace, { ".opencode/plugin/notify.ts": plugin });
    expect(await answered(guard)).toMatchObject(denied);
  });

  test("of a trusted workspace is loaded as it was trusted, and denies each call after a change until it is trusted again", async () => {
    const guards = (word: string) =>
      `export default { name: "own", "tool.execute.before": (_, { args }) => { if (args.text === "${word}") throw new Error("stopped"); } };`;
    const service = await serveWorkspace("", guards("x"));
    await trust(service);
    expect(await echo(service)).toMatchObject({
      error: "The hook tool.execute.before of the plugin own stopped this: stopped.",
    });
    await writeFiles(service.workspace, { ".opencode/plugins/guard.js": guards("y") });
    expect(await echo(service)).toMatchObject(denied);
    await trust(service);
    expect(await echo(service)).toMatchObject({ output: "x" });
    expect((await list(service)).problems).toEqual([]);
  });

  test("of a trusted workspace whose record is damaged denies each call, until it is trusted again", async () => {
    const service = await serveWorkspace("");
    await trust(service);
    expect(await echo(service)).toMatchObject({ output: "x" });
    const records = join(service.data, "trust");
    const [record = ""] = await readdir(records);
    await writeFile(join(records, record), '{ "directory"');
    expect(await echo(service)).toMatchObject(denied);
    expect(await echo(service)).toMatchObject(denied);
    await trust(service);
    expect(await readdir(records)).toEqual([record]);
    expect(await echo(service)).toMatchObject({ output: "x" });
  });

  test.each([
    ["optional", 1],
    ["off", 0],
  ])("of a trusted workspace where plugins are %s denies nothing", async (mode, problems) => {
    const service = await serveWorkspace(`[workspace_plugins]\ndefault = "${mode}"\n`, broken);
    await trust(service);
    expect(await echo(service)).toMatchObject({ output: "x" });
    expect((await list(service)).problems).toHaveLength(problems);
  });

  test("where plugins are optional leaves the others, which guard on after they break, too", async () => {
    const service = await serveWorkspace('[workspace_plugins]\ndefault = "optional"\n', broken);
    const stops = plugin.replace("() => {}", '() => { throw new Error("stopped"); }');
    await writeFiles(service.workspace, { ".opencode/plugin/notify.ts": stops });
    await trust(service);
    expect(await echo(service)).toMatchObject({ error: expect.stringContaining("stopped") });
    const guard = join(service.workspace, ".opencode/plugins/guard.js");
    expect((await list(service)).problems).toMatchObject([{ path: guard }]);
    await writeFiles(service.workspace, { ".opencode/plugin/notify.ts": broken });
    await trust(service);
    expect(await echo(service)).toMatchObject({ error: expect.stringContaining("stopped") });
  });

  test("after a change of its file denies each call until it loads again", async () => {
    const service = createService({ settings: 'plugin = ["plugins/guard.ts"]\n' });
    try {
      await expect(service.start()).rejects.toThrow(/plugins\/guard\.ts.* is not loaded/);
      await writeTools(service, { "plugins/guard.ts": plugin });
      await service.start();
      expect(await echo(service)).toMatchObject({ output: "x" });
      await writeTools(service, { "plugins/guard.ts": "export default {;" });
      expect(await echo(service)).toMatchObject({
        reason: ToolErrorReason.GUARD_NOT_LOADED,
        error: expect.stringMatching(/plugins\/guard\.ts, line 1, is not loaded.*optional = true/),
      });
      await rm(join(dirname(service.config), "plugins/guard.ts"));
      expect(await echo(service)).toMatchObject({ reason: ToolErrorReason.GUARD_NOT_LOADED });
      await writeTools(service, { "plugins/guard.ts": plugin });
      expect(await echo(service)).toMatchObject({ output: "x" });
    } finally {
      await service.close();
    }
  });

  test("that is optional refuses neither the start nor a call, and is listed", async () => {
    const service = await startService({
      settings: 'plugin = [{ path = "./none.ts", optional = true }, { path = "@acme/none", optional = true }]\n',
    });
    expect(await echo(service)).toMatchObject({ output: "x" });
    expect((await list(service)).problems).toHaveLength(2);
  });
});

async function untilFile(path: string): Promise<void> {
  const { watch, existsSync } = await import("node:fs");
  const watcher = watch(dirname(path));
  const there = new Promise<void>((resolve) => watcher.on("change", () => existsSync(path) && resolve()));
  if (!existsSync(path)) await there;
  watcher.close();
}
