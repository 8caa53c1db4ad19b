import type { JsonObject } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { outputOf, type Runtime, type StartedProcess, startProcess } from "./driver.ts";

const files = {
  "guard.ts": `
    import { definePlugin } from "toolgate/plugin";
    export default definePlugin({
      name: "guard",
      async "tool.execute.before"(call, output) {
        if (call.tool === "write") throw new Error("no writing");
        output.args = { ...output.args, by: this.name };
      },
      "shell.env": (input, output) => { output.env.CWD = input.cwd; },
    });`,
  "kit.ts": `
    import type { Plugin } from "@opencode-ai/plugin";
    import { tool } from "@opencode-ai/plugin/tool";
    export const Kit: Plugin = async ({ $, client, directory, worktree, project, serverUrl }) => {
      await client.app.log({ body: { service: "kit", level: "info", message: "loaded in " + project.worktree } });
      return {
        event: async () => {},
        auth: { provider: "acme", methods: [] },
        "chat.message": async () => {},
        "tool.execute.after": async (input, output) => { output.output += " after"; output.metadata.late = undefined; },
        tool: {
          shell: tool({ description: "", args: { text: tool.schema.string() }, async execute({ text }) {
            const said = await $\`printf '%s' \${text}; printf err 1>&2\`.quiet();
            const failed = await $\`exit 3\`.nothrow();
            const where = (await $\`pwd\`.cwd("/").text()).trim();
            const lines = []; for await (const line of $\`printf 'a\\nb\\n'\`.lines()) lines.push(line);
            const env = await $\`printf "$X"\`.env({ X: "y" }).text();
            const list = await $\`printf '[%s]' \${["a b", "c"]}\`.text();
            const json = await $\`echo \${{ raw: '\\'{"n":1}\\'' }}\`.json();
            return JSON.stringify([said.stdout.toString(), said.stderr.toString(), said.exitCode, failed.exitCode, where, lines, env, list, json]);
          } }),
          fails: tool({ description: "", args: {}, execute: async () => await $\`echo sad 1>&2; exit 4\`.text() }),
          session: tool({ description: "", args: {}, execute: async () => String(await client.session.prompt({ path: { id: "x" } })) }),
          place: tool({ description: "", args: {}, execute: async () => [directory === worktree, serverUrl instanceof URL].join() }),
        },
      };
    };
    export const notAPlugin = 5;`,
  "module.ts": `
    const server = async () => ({ tool: { served: { description: "", args: {}, execute: () => "yes" } } });
    export const Legacy = async () => await server();
    export default { id: "module", server, setup: () => {} };`,
  "silent.ts": `// import type { Plugin } from "@opencode-ai/plugin"\n/* export const Notify = () => {} */\n// nothing left`,
  "none.ts": `export const settings = 1;`,
  "breaks.ts": `\nexport default async () => {\n  throw new Error("no token");\n};`,
};

/** Tests of plugins, and of what tools do to their process, under one runtime. */
export function describePlugins(runtime: Runtime): void {
  let started: StartedProcess;
  beforeAll(async () => {
    started = await startProcess({ runtime, files, load: Object.keys(files), kind: "plugin" });
  });
  afterAll(() => started[Symbol.asyncDispose]());

  let hooks = 0;
  async function runHook(plugin: number, name: string, input: JsonObject, output: JsonObject) {
    hooks += 1;
    const hookId = `h${hooks}`;
    started.send({ case: "hook", value: { hookId, plugin, name, input, output } });
    const { outcome } = await started.next((message) =>
      message.case === "hooked" && message.value.hookId === hookId ? message.value : undefined,
    );
    return outcome.value;
  }

  describe("a plugin file", () => {
    test("brings plugins with the hooks that Toolgate runs, and tools", () => {
      expect(started.hello.plugins).toMatchObject([
        { name: "guard", hooks: ["tool.execute.before", "shell.env"] },
        { name: "kit", hooks: ["tool.execute.after"] },
        { name: "module", hooks: [] },
      ]);
      expect(started.hello.tools.map(({ name }) => name)).toEqual(["shell", "fails", "session", "place", "served"]);
    });

    test("with other hooks and parts is loaded, and they are reported", () => {
      const reasons = started.hello.problems.filter(({ file }) => file === "").map(({ reason }) => reason);
      expect(reasons).toContain("the hook event is unknown to Toolgate: it is never run");
      expect(reasons).toContain("the hook chat.message is unknown to Toolgate: it is never run");
      expect(reasons).toContain("the part auth is unknown to Toolgate: it has no effect");
    });

    test("with only comments guards nothing and is reported; any other without a plugin is not loaded", () => {
      const about = (name: string) => started.hello.problems.filter(({ path }) => path.endsWith(name));
      expect(about("silent.ts")).toMatchObject([{ file: "", reason: expect.stringContaining("only comments") }]);
      expect(about("none.ts")).toMatchObject([
        { file: `${started.directory}/none.ts`, reason: expect.stringContaining("exports no plugin") },
      ]);
      expect(about("breaks.ts")).toMatchObject([
        { file: `${started.directory}/breaks.ts`, line: 3, reason: "no token" },
      ]);
    });
  });

  test("a plugin of an installed package is listed with its digest, so that another version of it is noticed", async () => {
    const path = "node_modules/guard/index.ts";
    const files = {
      [path]: `import "./part"; export default () => ({ "shell.env": () => {} });`,
      "node_modules/guard/part.ts": "",
    };
    await using process = await startProcess({ runtime, files, load: [path], kind: "plugin" });
    expect(process.hello.files.map((file) => file.path)).toEqual([`${process.directory}/${path}`]);
  });

  describe("a hook", () => {
    test("changes its output in place or replaces a field", async () => {
      const before = await runHook(0, "tool.execute.before", { tool: "read" }, { args: { a: 1 } });
      expect(before).toEqual({ args: { a: 1, by: "guard" } });
      expect(await runHook(0, "shell.env", { cwd: "/work" }, { env: {} })).toEqual({ env: { CWD: "/work" } });
      const after = await runHook(1, "tool.execute.after", {}, { title: "", output: "text", metadata: {} });
      expect(after).toEqual({ title: "", output: "text after", metadata: {} });
    });

    test("that throws reports its reason", async () => {
      expect(await runHook(0, "tool.execute.before", { tool: "write" }, { args: {} })).toBe("no writing");
    });
  });

  describe("a tool of a plugin", () => {
    test("runs commands by $ as Bun's shell does", async () => {
      const text = "it's $HOME; `id`";
      expect(JSON.parse(outputOf(await started.call("shell", { text })))).toEqual([
        ...[text, "err", 0, 3, "/", ["a", "b", ""], "y", "[a b][c]", { n: 1 }],
      ]);
      const { result } = await started.call("fails", {});
      expect(result.value).toMatchObject({ message: expect.stringMatching(/exit code 4.*sad/) });
    });

    test("gets directory, worktree, project and an address", async () => {
      expect(outputOf(await started.call("place", {}))).toBe("true,true");
    });

    test("logs by opencode's client; other methods of it are refused by name", async () => {
      expect(started.stderr()).toContain(
        `client.app.log: {"service":"kit","level":"info","message":"loaded in ${started.directory}"}`,
      );
      const { result } = await started.call("session", {});
      expect(result.value).toMatchObject({
        message: expect.stringContaining("client.session.prompt() of opencode is not available"),
      });
    });
  });

  describe("a process", () => {
    const tools = {
      "tool/t.ts": `
      import { tool } from "@opencode-ai/plugin";
      const make = (execute) => tool({ description: "", args: {}, execute });
      export const prints = make(async () => { process.stdout.write("\\x00garbage\\xff"); console.log("{}"); return "ok"; });
      export const rejects = make(async () => { void Promise.reject(new Error("left alone")); await new Promise(() => {}); });
      export const exits = make(async () => process.exit(7));
      export const where = make(async () => process.cwd());`,
    };

    test("is not disturbed by what tools print, and works in the project", async () => {
      await using process = await startProcess({ runtime, files: tools, load: ["tool/t.ts"] });
      expect(outputOf(await process.call("t_prints", {}))).toBe("ok");
      expect(outputOf(await process.call("t_where", {}))).toBe(process.directory);
    });

    test.each<[tool: string, code: number]>([
      ["t_rejects", 1],
      ["t_exits", 7],
    ])("ends when %s", async (tool, code) => {
      await using process = await startProcess({ runtime, files: tools, load: ["tool/t.ts"] });
      await expect(process.call(tool, {})).rejects.toThrow("the process has ended");
      expect(await process.exited).toBe(code);
      if (code === 1) expect(process.stderr()).toMatch(/^Unhandled rejection: Error: left alone\n.*t\.ts:5/m);
    });

    test("ends when the service closes its pipe", async () => {
      await using process = await startProcess({ runtime, files: tools, load: ["tool/t.ts"] });
      process.closeInput();
      expect(await process.exited).toBe(0);
    });
  });
}
