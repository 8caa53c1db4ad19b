import { expect, test } from "vitest";
import { callTool, judgeBy, openTestWorkspace, planCall, toolFrom } from "../src/testing.ts";
import { defineTool, tool, z } from "../src/tool/plugin.ts";

const input = z.object({});

test("a planned call shows its title and asks before anything runs", async () => {
  await using site = await openTestWorkspace();
  const deploy = defineTool({
    name: "deploy",
    description: "",
    input: z.object({ to: z.string() }),
    execute: () => ({}),
  });
  const { plan } = await planCall(site, deploy, { to: "prod" });
  expect(plan).toEqual({
    title: "deploy",
    asks: [{ permission: "deploy", patterns: ['{"to":"prod"}'], wholeCall: true }],
  });
  await expect(planCall(site, deploy, { to: 1 })).rejects.toThrow("Invalid arguments for deploy");
});

test("an ask that the tool does not declare is a defect, in the plan and in the body", async () => {
  await using site = await openTestWorkspace();
  const planned = defineTool({
    name: "planned",
    description: "",
    input,
    permissions: ["read"],
    plan: () => ({ title: "", asks: [{ permission: "edit", patterns: ["a"] }] }),
    execute: () => ({}),
  });
  await expect(planCall(site, planned, {})).rejects.toThrow('the tool planned asks "edit", which it does not declare');
  const asking = defineTool({
    name: "asking",
    description: "",
    input,
    permissions: [],
    plan: () => ({ title: "", asks: [] }),
    async execute(_input, ctx) {
      await ctx.ask({ permission: "bash", patterns: ["ls"] });
      return {};
    },
  });
  await expect(callTool(site, asking, {})).rejects.toThrow('the tool asking asks "bash", which it does not declare');
});

test("a run returns the result with its progress, output and asks", async () => {
  await using site = await openTestWorkspace();
  const busy = defineTool({
    name: "busy",
    description: "",
    input,
    async execute(_input, ctx) {
      ctx.metadata({ title: "half", metadata: { done: 1 } });
      await ctx.output(Buffer.from("one\n"));
      await ctx.output(Buffer.from("two\n"));
      await ctx.ask({ permission: "busy", patterns: ["on"] });
      const [child] = await ctx.calls([{ tool: "echo", input: { text: "hi" } }], { atomic: false });
      await ctx.state.set("seen", true);
      return { metadata: { child: child?.text ?? "" } };
    },
  });
  const pieces: string[] = [];
  const result = await callTool(
    site,
    busy,
    {},
    {
      onOutput: (text) => void pieces.push(text),
      onCalls: (children) =>
        children.map(({ tool }) => ({ callId: "c", status: "completed", title: tool, text: "hi", attachments: [] })),
    },
  );
  expect(result).toEqual({
    metadata: { child: "hi" },
    written: "one\ntwo\n",
    progress: [{ title: "half", metadata: { done: 1 } }],
    asked: [{ permission: "busy", patterns: ["on"] }],
  });
  expect(pieces).toEqual(["one\n", "one\ntwo\n"]);
  expect(site.state.get("seen")).toBe(true);
});

test("a run is cancelled by its signal, and an ask is refused by a throw", async () => {
  await using site = await openTestWorkspace();
  const waiting = defineTool({
    name: "waiting",
    description: "",
    input: z.object({ ask: z.boolean() }),
    async execute({ ask }, ctx) {
      if (ask) await ctx.ask({ permission: "waiting", patterns: ["*"] });
      const aborted = Promise.withResolvers<never>();
      ctx.signal.addEventListener("abort", () => aborted.reject(ctx.signal.reason));
      return await aborted.promise;
    },
  });
  const controller = new AbortController();
  const cancelled = callTool(site, waiting, { ask: false }, { signal: controller.signal });
  setTimeout(() => controller.abort(new Error("cancelled")), 10);
  await expect(cancelled).rejects.toThrow("cancelled");
  const refuse = () => {
    throw new Error("refused");
  };
  await expect(callTool(site, waiting, { ask: true }, { onAsk: refuse })).rejects.toThrow("refused");
});

test("rules are those of the service: built-in ones first, then those that the test writes", async () => {
  await using site = await openTestWorkspace({ "src/a.txt": "a", ".env": "KEY=1" });
  const judge = async (path: string) => {
    const { absolute, pattern } = await site.workspace.resolve(path);
    return site.judge({ permission: "read", patterns: [pattern], paths: [absolute] }).action;
  };
  expect([await judge("src/a.txt"), await judge(".env")]).toEqual(["allow", "allow"]);
  site.judge = judgeBy({ read: { "src/*": "deny" } });
  expect([await judge("src/a.txt"), await judge(".env")]).toEqual(["deny", "ask"]);
});

test("a tool of a tool file is called as the service would", async () => {
  await using site = await openTestWorkspace();
  const exported = tool({
    description: "Greet a person.",
    args: { name: tool.schema.string() },
    execute: async ({ name }, { directory }) => `Hello ${name} in ${directory}.`,
  });
  const greet = await toolFrom("greet", exported);
  const { output } = await callTool(site, greet, { name: "Ada" });
  expect(output).toBe(`Hello Ada in ${site.directory}.`);
  await expect(toolFrom("none", { description: "no tool" })).rejects.toThrow("none is not a tool");
});
