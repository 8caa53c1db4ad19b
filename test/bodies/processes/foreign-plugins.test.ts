import { join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { installBun } from "./bun-program.ts";
import { node, outputOf, type StartedProcess, startProcess } from "./driver.ts";
import { installPackages } from "./installed.ts";

/** Plugins for opencode, as their authors published them. */
const plugins = {
  anthropic: "opencode-anthropic-auth/index.mjs",
  beads: "opencode-beads/src/plugin.ts",
  copilot: "opencode-copilot-auth/index.mjs",
  destructive: "@sureshsankaran/opencode-destructive-check/src/index.ts",
  heartbeat: "heartbeat-opencode-plugin/index.ts",
  pruning: "@tarquinen/opencode-dcp/dist/index.js",
  ranger: "@ranger-testing/opencode-plugin/build/index.js",
};
const modules = installPackages("plugins", "seven plugins for opencode, about 230 MB");
const runtimes = [node, installBun()];

describe.each(runtimes)("under $name", (runtime) => {
  /** Starts a process with one plugin, in a new project. */
  async function start(name: keyof typeof plugins): Promise<StartedProcess> {
    const path = join(modules, plugins[name]);
    const started = await startProcess({ runtime, kind: "plugin", load: [path], files: { "a.txt": "text" } });
    expect(started.hello.problems.filter(({ file }) => file !== "")).toEqual([]);
    expect(started.hello.plugins).toHaveLength(1);
    return started;
  }

  async function runHook({ send, next }: StartedProcess, name: string, input: JsonObject, output: JsonObject) {
    send({ case: "hook", value: { hookId: name, plugin: 0, name, input, output } });
    const { outcome } = await next((message) =>
      message.case === "hooked" && message.value.hookId === name ? message.value : undefined,
    );
    return outcome.value;
  }

  const reasonsOf = ({ hello }: StartedProcess) => hello.problems.map(({ reason }) => reason);

  test("a plugin that guards commands runs its three hooks and its tool", async () => {
    await using started = await start("destructive");
    expect(started.hello.plugins[0]?.hooks).toEqual(["tool.execute.before", "permission.ask", "tool.execute.after"]);
    const call = { tool: "bash", sessionID: "ses_1", callID: "c1" };
    const args = { command: "rm -rf /etc" };
    expect(await runHook(started, "tool.execute.before", call, { args })).toEqual({ args });
    const ask = { id: "per_1", permission: "bash", patterns: ["rm -rf /etc"], sessionID: "ses_1", metadata: {} };
    expect(await runHook(started, "permission.ask", ask, { status: "allow" })).toEqual({ status: "ask" });
    const result = { title: "", output: "rm: cannot remove", metadata: {} };
    expect(await runHook(started, "tool.execute.after", call, result)).toEqual(result);
    expect(started.stderr()).toContain("PERMISSION REQUIRED");
    expect(outputOf(await started.call("destructive-check-status", {}))).toContain('"permissionsRequested": 1');
  });

  test("a plugin with 24 tools brings them, and they work in the home directory that they get", async () => {
    await using started = await start("heartbeat");
    expect(started.hello.tools).toHaveLength(24);
    const booted = await started.call("heartbeat_boot_context", { program: "p", taskId: "t" });
    expect(JSON.parse(outputOf(booted))).toMatchObject({ task: null, tagFormat: "[p][t]" });
  });

  test("a plugin that calls programs by $ runs its hook and its tools", async () => {
    await using started = await start("ranger");
    expect(started.hello.plugins[0]?.hooks).toEqual(["tool.execute.after"]);
    const result = { title: "", output: "text", metadata: {} };
    const call = { tool: "edit", sessionID: "ses_1", callID: "c1" };
    expect(await runHook(started, "tool.execute.after", call, result)).toEqual(result);
    expect(outputOf(await started.call("ranger_disable", {}))).toMatch(/Ranger/);
    expect(reasonsOf(started)).toContain("the hook event is unknown to Toolgate: it is never run");
  });

  test("a plugin that rewrites the messages of sessions loads; what it has no server for is named", async () => {
    await using started = await start("pruning");
    expect(started.hello.tools.map(({ name }) => name)).toEqual(["compress"]);
    const reason = "the hook experimental.chat.messages.transform is unknown to Toolgate: it is never run";
    expect(reasonsOf(started)).toContain(reason);
    const input = { topic: "t", content: [{ startId: "m0001", endId: "m0002", summary: "s" }] };
    const { result } = await started.call("compress", input);
    expect(result.value).toMatchObject({
      message: expect.stringMatching(/client\.\w+(\.\w+)*\(\) of opencode is not available/),
    });
  });

  test.each<[name: keyof typeof plugins, unused: string[]]>([
    ["anthropic", ["the hook experimental.chat.system.transform", "the part auth"]],
    ["beads", ["the hook chat.message", "the hook event", "the hook config"]],
    ["copilot", ["the part auth"]],
  ])("the plugin %s has only parts that mean nothing here, and each is reported", async (name, unused) => {
    await using started = await start(name);
    expect(reasonsOf(started).map((reason) => reason.replace(/ is unknown to Toolgate: .*/, ""))).toEqual(unused);
  });
});
