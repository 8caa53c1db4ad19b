import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ConnectError } from "@connectrpc/connect";
import { describe, expect, onTestFinished, test } from "vitest";
import * as z from "zod";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { ToolFailure } from "../../src/tool/errors.ts";
import { createHooks, type Hooks } from "../../src/tool/hooks.ts";
import type { ToolContext } from "../../src/tool/tool.ts";
import { question } from "../../src/tools/question.ts";
import { serve } from "../call/server.ts";
import { read } from "../e2e/reading.ts";

type Service = Awaited<ReturnType<typeof serve>>;

/** Says its words in capitals; `shout` asks first. */
function words(name: string, asks: boolean, execute: (words: string, ctx: ToolContext) => string = (text) => text) {
  return defineTool({
    name,
    description: "Says words.",
    input: z.object({ words: z.string() }),
    plan: ({ words }) => ({ title: name, asks: asks ? [{ permission: name, patterns: [words] }] : [] }),
    execute: ({ words }, ctx) => ({ output: execute(words, ctx) }),
  });
}

async function serveWith(hooks: Hooks, tools = [words("say", false), words("shout", true)]): Promise<Service> {
  const service = await serve(tools);
  service.addHooks("guard", hooks);
  return service;
}

/** Calls a tool; answers its asks with "once" and returns them. */
async function call({ agent, person }: Service, tool: string, text = "hello", callId = "c1") {
  const sessionId = "ses_test";
  await agent.sessions.createSession({ sessionId });
  const asked: string[][] = [];
  const inputs: unknown[] = [];
  for await (const { event } of agent.tools.executeTool({ sessionId, callId, tool, input: { words: text } })) {
    if (event?.event.case === "part") inputs.push(event.event.value.state.value?.input);
    if (event?.event.case !== "permissionAsked") continue;
    asked.push(event.event.value.patterns);
    const permissionId = event.event.value.id;
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  }
  const { part } = await agent.tools.getToolPart({ sessionId, callId });
  return { asked, inputs, state: part?.state.value };
}

async function reasonOf(refused: Promise<unknown>): Promise<string | undefined> {
  const error = await refused.then(
    () => undefined,
    (error: unknown) => error,
  );
  return ConnectError.from(error).findDetails(ErrorInfoSchema)[0]?.reason;
}

describe("tool.execute.before", () => {
  test.each([
    ["changes args in place", (output: { args: object }) => void Object.assign(output.args, { words: "changed" })],
    [
      "replaces args",
      (output: { args: object }) => {
        output.args = { words: "changed" };
      },
    ],
  ])("%s: approvers see the result, and the tool runs with it", async (_how, change) => {
    const service = await serveWith({ "tool.execute.before": (_input, output) => change(output) });
    const { asked, inputs, state } = await call(service, "shout");
    expect(asked).toEqual([["changed"]]);
    expect(inputs).toEqual([{ words: "hello" }, ...Array(3).fill({ words: "changed" })]);
    expect(state).toMatchObject({ output: "changed", input: { words: "changed" } });
  });

  test("runs once for a call; a repeated call is compared with the original input and attaches", async () => {
    const seen: unknown[] = [];
    const service = await serveWith({
      "tool.execute.before"(input, output) {
        seen.push(input);
        output.args.words = `${output.args.words}!`;
      },
    });
    await call(service, "shout");
    expect((await call(service, "shout")).state).toMatchObject({ output: "hello!" });
    expect(seen).toEqual([{ tool: "shout", sessionID: "ses_test", callID: "c1" }]);
    expect(await reasonOf(call(service, "shout", "hello!"))).toBe("CALL_ID_REUSED");
  });

  test("does not run again on the replica that takes the call over, which uses the stored result", async () => {
    const { agent, close, restart, addHooks } = await serve([words("shout", true)]);
    addHooks("guard", {
      "tool.execute.before"(_input, output) {
        output.args.words = "from the first";
      },
    });
    const sessionId = "ses_test";
    await agent.sessions.createSession({ sessionId });
    const request = { sessionId, callId: "c1", tool: "shout", input: { words: "hello" } };
    for await (const { event } of agent.tools.executeTool(request)) if (event?.event.case === "permissionAsked") break;
    await close();
    const second = await restart();
    second.addHooks("guard", { "tool.execute.before": () => expect.unreachable("it runs a second time") });
    for await (const { event } of second.agent.tools.executeTool(request)) {
      if (event?.event.case !== "permissionAsked") continue;
      expect(event.event.value.patterns).toEqual(["from the first"]);
      const permissionId = event.event.value.id;
      await second.person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    }
    const { part } = await second.agent.tools.getToolPart({ sessionId, callId: "c1" });
    expect(part?.state.value).toMatchObject({ output: "from the first" });
  });

  test("of several plugins run in order, each on the output of the one before", async () => {
    const service = await serve([words("say", false)]);
    for (const mark of ["a", "b"]) {
      service.addHooks(mark, {
        "tool.execute.before": (_input, output) => {
          output.args.words += mark;
        },
      });
    }
    expect((await call(service, "say")).state).toMatchObject({ output: "helloab" });
  });

  test("that throws stops the call before asks and run; the error names the hook", async () => {
    const service = await serveWith(
      {
        "tool.execute.before"() {
          throw new Error("no shouting today");
        },
      },
      [words("shout", true, () => expect.unreachable())],
    );
    const { asked, state } = await call(service, "shout");
    expect(asked).toEqual([]);
    expect(state).toMatchObject({
      reason: ToolErrorReason.FAILED,
      effects: ToolEffects.NONE,
      error: "The hook tool.execute.before of the plugin guard stopped this: no shouting today.",
    });
  });

  test("that makes the input invalid stops the call before the tool runs", async () => {
    const service = await serveWith({
      "tool.execute.before"(_input, output) {
        output.args = {};
      },
    });
    expect((await call(service, "say")).state).toMatchObject({ reason: ToolErrorReason.INVALID_INPUT });
  });
});

describe("permission.ask", () => {
  const deciding = (status: "allow" | "deny") =>
    serveWith({
      "permission.ask"(input, output) {
        if (input.type === "shout" && input.pattern[0] === "hello") output.status = status;
      },
    });

  test("that allows answers this ask and no other", async () => {
    const service = await deciding("allow");
    const { asked, state } = await call(service, "shout");
    expect([asked, state?.status]).toEqual([[], "completed"]);
    expect((await call(service, "shout", "other", "c2")).asked).toEqual([["other"]]);
  });

  test("that allows does so for the content of the bound files that it was asked about", async () => {
    const directory = await mkdtemp(join(tmpdir(), "toolgate-bound-"));
    onTestFinished(() => rm(directory, { recursive: true }));
    const absolute = join(directory, "script.sh");
    await writeFile(absolute, "make\n");
    const bound = defineTool({
      name: "bound",
      description: "Runs a script.",
      input: z.object({ words: z.string() }),
      plan: () => ({ title: "", asks: [{ permission: "bound", patterns: ["x"] }], binds: [{ absolute }] }),
      execute: () => ({ output: "ran" }),
    });
    let decisions = 0;
    const service = await serveWith(
      {
        async "permission.ask"(_input, output) {
          decisions += 1;
          output.status = "allow";
          if (decisions === 1) await writeFile(absolute, "rm -rf build\n");
        },
      },
      [bound],
    );
    expect((await call(service, "bound")).state).toMatchObject({ output: "ran" });
    expect(decisions).toBe(2);
  });

  test("that denies ends the call DENIED", async () => {
    expect((await call(await deciding("deny"), "shout")).state).toMatchObject({ reason: ToolErrorReason.DENIED });
  });

  test("does not run where rules deny", async () => {
    const service = await serve([words("shout", true)]);
    service.addHooks("guard", { "permission.ask": () => expect.unreachable() });
    const sessionId = "ses_test";
    await service.agent.sessions.createSession({
      sessionId,
      rules: [{ permission: "shout", pattern: "*", action: 3 }],
    });
    expect((await call(service, "shout")).state).toMatchObject({ reason: ToolErrorReason.DENIED });
  });

  test("that throws stops the call without an ask", async () => {
    const service = await serveWith({ "permission.ask": () => Promise.reject(new Error("broken")) });
    const { asked, state } = await call(service, "shout");
    expect(asked).toEqual([]);
    expect(state).toMatchObject({
      error: expect.stringContaining("permission.ask of the plugin guard"),
      effects: ToolEffects.NONE,
    });
  });

  test.each([
    ["allows", "allow", ["Go on?"], ToolErrorReason.REJECTED],
    ["denies", "deny", [], ToolErrorReason.DENIED],
  ] as const)("that %s leaves a question to a person, or denies it", async (_, status, asked, reason) => {
    const { agent, person } = await serveWith(
      {
        "permission.ask"(_input, output) {
          output.status = status;
        },
      },
      [question],
    );
    const sessionId = "ses_test";
    await agent.sessions.createSession({ sessionId });
    const request = { sessionId, callId: "c1", tool: "question", input: { question: "Go on?" } };
    const stream = read(agent.tools.executeTool(request));
    if (asked.length > 0) {
      const { id: permissionId, patterns } = await stream.until("permissionAsked");
      expect(patterns).toEqual(asked);
      await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.REJECT });
    }
    expect((await stream.end()).state.value).toMatchObject({ reason });
  });

  test("also decides asks of the body", async () => {
    const tool = defineTool({
      name: "asks",
      description: "",
      input: z.object({ words: z.string() }),
      plan: () => ({ title: "", asks: [] }),
      async execute(_input, ctx) {
        await ctx.ask({ permission: "inner", patterns: ["x"] });
        return { output: "went on" };
      },
    });
    const service = await serveWith(
      {
        "permission.ask"(_input, output) {
          output.status = "allow";
        },
      },
      [tool],
    );
    expect(await call(service, "asks")).toMatchObject({ asked: [], state: { output: "went on" } });
  });
});

describe("tool.execute.after", () => {
  test("changes the shown result, but not the sizes of the output", async () => {
    const service = await serveWith({
      "tool.execute.after"(input, output) {
        output.title = `${input.tool} ${input.status}`;
        output.output += " (checked)";
        output.metadata = { args: input.args, truncated: "yes" };
      },
    });
    expect((await call(service, "say")).state).toMatchObject({
      title: "say completed",
      output: "hello (checked)",
      metadata: { args: { words: "hello" }, truncated: false, originalSize: 5 },
    });
  });

  test("runs on failure, with the error", async () => {
    const service = await serveWith(
      {
        "tool.execute.after"(input, output) {
          output.output = `${input.status}: ${output.output}`;
        },
      },
      [
        words("say", false, () => {
          throw new ToolFailure("no voice");
        }),
      ],
    );
    expect((await call(service, "say")).state).toMatchObject({
      error: "error: no voice",
      reason: ToolErrorReason.FAILED,
    });
  });

  test("that throws fails the call with unknown effects", async () => {
    const service = await serveWith({ "tool.execute.after": () => Promise.reject(new Error("broken")) });
    expect((await call(service, "say")).state).toMatchObject({
      error: "The hook tool.execute.after of the plugin guard stopped this: broken.",
      effects: ToolEffects.UNKNOWN,
    });
  });
});

describe("tool.definition", () => {
  test("changes what models see, not the accepted input nor the definition ID", async () => {
    const service = await serve([words("say", false)]);
    const list = async () => (await service.agent.tools.listTools({})).tools.find(({ name }) => name === "say");
    const before = await list();
    const remove = service.addHooks("guard", {
      "tool.definition"({ toolID }, output) {
        output.description += ` (${toolID})`;
        output.parameters.title = "Words";
      },
    });
    const after = await list();
    expect(after).toMatchObject({ description: "Says words. (say)", inputSchema: { title: "Words" } });
    expect(after?.definitionId).toBe(before?.definitionId);
    remove();
    expect(await list()).toEqual(before);
  });

  test("that throws fails ListTools with an error that names the hook", async () => {
    const service = await serveWith({ "tool.definition": () => Promise.reject(new Error("broken")) });
    expect(await reasonOf(service.agent.tools.listTools({}))).toBe("HOOK_FAILED");
  });
});

test("shell.env adds to the environment of bash, once for a call", async () => {
  const seen: unknown[] = [];
  const service = await serve([]);
  service.addHooks("guard", {
    "shell.env"(input, output) {
      seen.push(input);
      output.env.GREETING = "hello";
    },
  });
  const { agent, person, workspace } = service;
  const sessionId = "ses_test";
  await agent.sessions.createSession({ sessionId });
  const request = { sessionId, callId: "c1", tool: "bash", input: { command: "echo $GREETING" } };
  let output: unknown;
  for await (const { event } of agent.tools.executeTool(request)) {
    if (event?.event.case === "permissionAsked") {
      const permissionId = event.event.value.id;
      await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    }
    if (event?.event.case === "part" && event.event.value.state.case === "completed")
      output = event.event.value.state.value.output;
  }
  expect(output).toBe("hello\n");
  expect(seen).toEqual([{ cwd: workspace, sessionID: sessionId, callID: "c1" }]);
});

describe("a replica that takes a call over", () => {
  test("uses the approved environment and does not run shell.env again", async () => {
    const first = await serve([]);
    const greet = (greeting: string) => ({
      "shell.env"(_: unknown, output: { env: Record<string, string> }) {
        output.env.GREETING = greeting;
      },
    });
    first.addHooks("guard", greet("hello"));
    const sessionId = "ses_test";
    await first.agent.sessions.createSession({ sessionId });
    const request = { sessionId, callId: "c1", tool: "bash", input: { command: "echo $GREETING" } };
    const asked = await read(first.agent.tools.executeTool(request)).until("permissionAsked");
    await first.close();
    const second = await first.restart();
    second.addHooks("guard", greet("bye"));
    const stream = read(second.agent.tools.executeTool(request));
    await stream.until("permissionAsked");
    const answer = { sessionId, permissionId: asked.id, reply: PermissionReply.ONCE, expectedDigest: asked.digest };
    await second.person.permissions.respondToPermission(answer);
    const { event } = await stream.find(({ event }) => event.case === "part" && event.value.state.case === "completed");
    expect(event.value).toMatchObject({ state: { value: { output: "hello\n" } } });
  });

  test("keeps the decision of permission.ask", async () => {
    const ran: string[] = [];
    const both = defineTool({
      name: "both",
      description: "Asks for two things.",
      input: z.object({}),
      plan: () => ({
        title: "both",
        asks: ["spared", "asked"].map((permission) => ({ permission, patterns: ["x"] })),
      }),
      execute() {
        ran.push("both");
        return { output: "ran" };
      },
    });
    const first = await serve([both]);
    first.addHooks("guard", {
      "permission.ask"(input, output) {
        if (input.type === "spared") output.status = "allow";
      },
    });
    const sessionId = "ses_test";
    await first.agent.sessions.createSession({ sessionId });
    const request = { sessionId, callId: "c1", tool: "both", input: {} };
    const asked = await read(first.agent.tools.executeTool(request)).until("permissionAsked");
    expect(asked.permission).toBe("asked");
    await first.close();
    const second = await first.restart();
    second.addHooks("guard", {
      "permission.ask"(_input, output) {
        output.status = "deny";
      },
    });
    const stream = read(second.agent.tools.executeTool(request));
    await stream.until("permissionAsked");
    const answer = { sessionId, permissionId: asked.id, reply: PermissionReply.ONCE };
    await second.person.permissions.respondToPermission(answer);
    await stream.find(({ event }) => event.case === "part" && event.value.state.case === "completed");
    expect(ran).toEqual(["both"]);
  });
});

describe("a hook", () => {
  test("that does not end times out", async () => {
    const hooks = createHooks({ timeoutMs: 1 });
    hooks.add("slow", { "tool.execute.before": () => new Promise(() => undefined) });
    const run = hooks
      .in("default")
      .run("tool.execute.before", { tool: "t", sessionID: "s", callID: "c" }, { args: {} });
    await expect(run).rejects.toThrow(
      "The hook tool.execute.before of the plugin slow stopped this: it did not end within 1 ms",
    );
  });

  test("that leaves an unusable value is refused", async () => {
    const hooks = createHooks();
    hooks.add("odd", {
      "tool.execute.before"(_input, output) {
        Object.assign(output, { args: "text" });
      },
    });
    const run = hooks
      .in("default")
      .run("tool.execute.before", { tool: "t", sessionID: "s", callID: "c" }, { args: {} });
    await expect(run).rejects.toThrow("it left an unusable value in args");
  });
});
