/** The laws of the tool system, each through the front door where a client can see it. */
import { describe, expect, test } from "vitest";
import * as z from "zod";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { boundTool, defineTool } from "../../src/tool/define-tool.ts";
import { ToolFailure } from "../../src/tool/errors.ts";
import { createRegistry } from "../../src/tool/registry.ts";
import type { DefinedTool, ToolContext } from "../../src/tool/tool.ts";
import { serve } from "../call/server.ts";

/** A tool without asks that returns a word, or runs the given function first. */
function say(
  name: string,
  word: string,
  execute: (ctx: ToolContext) => Promise<void> | void = () => undefined,
): DefinedTool {
  return defineTool({
    name,
    description: `Says ${word}.`,
    input: z.object({}),
    version: word,
    plan: () => ({ title: name, asks: [] }),
    async execute(_input, ctx) {
      await execute(ctx);
      return { output: word };
    },
  });
}

const reasons = new Map<number, string>(Object.entries(ToolErrorReason).map(([name, value]) => [value, name]));

type Service = Awaited<ReturnType<typeof serve>>;

async function output({ agent }: Pick<Service, "agent">, tool: string, fields = {}): Promise<unknown> {
  const { part } = await agent.tools.callTool({ tool, input: {}, ...fields });
  const state = part?.state;
  if (state?.case === "error") return reasons.get(state.value.reason);
  return state?.case === "completed" ? state.value.output : state?.case;
}

describe("single executor", () => {
  test("a tool runs the executor it was made with, even if its config object changes later", async () => {
    const config = {
      name: "t",
      description: "",
      input: z.object({}),
      plan: () => ({ title: "t", asks: [] }),
      execute: () => ({ output: "made" }),
    };
    const tool = defineTool(config);
    config.execute = () => ({ output: "changed" });
    config.input.safeParse = () => expect.unreachable("the record's schema is used");
    const service = await serve([tool]);
    expect(await output(service, "t")).toBe("made");
  });

  test("a tool is frozen", () => {
    const tool = say("t", "one");
    expect(() => Object.assign(tool, { execute: async () => ({ output: "changed" }) })).toThrow(TypeError);
    expect(() => Object.assign(boundTool(tool).definition.inputSchema ?? {}, { type: "string" })).toThrow(TypeError);
  });
});

describe("codec boundary", () => {
  test("execution sees decoded input, projection sees encoded output", async () => {
    const seen: unknown[] = [];
    const day = z.codec(z.string(), z.date(), {
      decode: (text) => new Date(text),
      encode: (date) => date.toISOString().slice(0, 10),
    });
    const tool = defineTool({
      name: "next",
      description: "The day after.",
      input: z.object({ day }),
      output: z.object({ day }),
      plan: () => ({ title: "next", asks: [] }),
      execute(input) {
        seen.push(input);
        return { day: new Date(input.day.getTime() + 86_400_000) };
      },
      toModelOutput(result) {
        seen.push(result.output);
        return [{ type: "text", text: result.output.day }];
      },
    });
    const service = await serve([tool]);
    expect(await output(service, "next", { input: { day: "2026-11-21" } })).toBe("2026-11-22");
    expect(seen).toEqual([{ day: new Date("2026-11-21") }, { day: "2026-11-22" }]);
  });
});

test("durable identity: a tool sees the session, agent, message and call that the caller named", async () => {
  const seen = Promise.withResolvers<ToolContext>();
  const service = await serve([say("who", "me", seen.resolve)]);
  await service.agent.sessions.createSession({ sessionId: "ses_mine" });
  await output(service, "who", { sessionId: "ses_mine", messageId: "msg_mine", callId: "call_mine", agent: "build" });
  expect(await seen.promise).toMatchObject({
    sessionId: "ses_mine",
    messageId: "msg_mine",
    callId: "call_mine",
    agent: "build",
  });
});

describe("scoped registration", () => {
  test("the latest registration serves; closing it reveals the one before, closing another changes nothing", async () => {
    const service = await serve([say("t", "one")]);
    const closeTwo = service.register({ t: say("t", "two") });
    const closeThree = service.register({ t: say("t", "three") });
    expect(await output(service, "t")).toBe("three");
    closeTwo();
    expect(await output(service, "t")).toBe("three");
    closeThree();
    expect(await output(service, "t")).toBe("one");
    closeThree();
    expect(await output(service, "t")).toBe("one");
  });

  test("a tool that is registered twice serves until both registrations are closed", () => {
    const registry = createRegistry();
    const tool = say("t", "one");
    const [first, second] = [registry.register({ t: tool }), registry.register({ t: tool })];
    first();
    expect(registry.get("t", "default")).toBe(boundTool(tool));
    second();
    expect(registry.get("t", "default")).toBeUndefined();
    expect(registry.list("default")).toEqual([]);
  });

  test("a workspace's tool takes precedence over a common one, in that workspace alone", () => {
    const registry = createRegistry();
    const [own, all] = [boundTool(say("t", "own")), boundTool(say("t", "all"))];
    const close = registry.register({ t: own }, "here");
    registry.register({ t: all });
    expect([registry.get("t", "here"), registry.get("t", "there")]).toEqual([own, all]);
    expect(registry.list("here")).toEqual([own]);
    close();
    expect(registry.get("t", "here")).toBe(all);
  });

  test("later changes of the registered record have no effect", () => {
    const registry = createRegistry();
    const tools: Record<string, DefinedTool> = { a: say("a", "a") };
    const close = registry.register(tools);
    tools.b = say("b", "b");
    expect(registry.list("default").map(({ name }) => name)).toEqual(["a"]);
    delete tools.a;
    close();
    expect(registry.list("default")).toEqual([]);
  });
});

test("captured execution: registrations and removals do not affect a running call", async () => {
  const entered = Promise.withResolvers<void>();
  const go = Promise.withResolvers<void>();
  const service = await serve([]);
  const close = service.register({
    t: say("t", "old", async () => {
      entered.resolve();
      await go.promise;
    }),
  });
  const running = output(service, "t");
  await entered.promise;
  close();
  service.register({ t: say("t", "new") });
  go.resolve();
  expect(await running).toBe("old");
  expect(await output(service, "t")).toBe("new");
});

describe("stale rejection", () => {
  test("a call of a replaced or revealed definition is refused; its siblings run", async () => {
    const service = await serve([say("t", "one"), say("sibling", "here")]);
    const { tools } = await service.agent.tools.listTools({});
    const [one] = tools.filter(({ name }) => name === "t");
    const close = service.register({ t: say("t", "two") });
    const [two] = (await service.agent.tools.listTools({})).tools.filter(({ name }) => name === "t");
    expect(await output(service, "t", { definitionId: one?.definitionId })).toBe("STALE_TOOL");
    expect(
      await output(service, "sibling", { definitionId: tools.find(({ name }) => name === "sibling")?.definitionId }),
    ).toBe("here");
    close();
    expect(await output(service, "t", { definitionId: two?.definitionId })).toBe("STALE_TOOL");
    expect(await output(service, "t", { definitionId: one?.definitionId })).toBe("one");
  });

  test("a call of a tool that was removed is UNKNOWN_TOOL", async () => {
    const service = await serve([]);
    service.register({ t: say("t", "one") })();
    expect(await output(service, "t")).toBe("UNKNOWN_TOOL");
  });
});

test("storage encapsulation: the whole result is stored, however little the model sees", async () => {
  const text = "line\n".repeat(50_000);
  const service = await serve([
    defineTool({
      name: "much",
      description: "",
      input: z.object({}),
      output: z.string(),
      plan: () => ({ title: "", asks: [] }),
      execute: () => text,
      toModelOutput: ({ output }) => [{ type: "text", text: `${output.length}\n${output}` }],
    }),
  ]);
  const { part } = await service.agent.tools.callTool({ tool: "much", input: {} });
  if (part?.state.case !== "completed") throw new Error("the call did not complete");
  const { output: seen, metadata } = part.state.value;
  expect(seen).toMatch(/^250000\n/);
  expect(seen.length).toBeLessThan(60_000);
  const path = metadata?.structuredPath;
  const sizes = { truncated: true, originalSize: 250_007 };
  expect(metadata).toMatchObject(sizes);
  const read = await service.agent.tools.readToolOutput({
    sessionId: part.sessionId,
    output: String(path),
    range: { case: "bytes", value: { offset: 0n, limit: 1_000_000 } },
  });
  expect(JSON.parse(Buffer.from(read.data).toString())).toBe(text);
});

describe("failure semantics", () => {
  test("an expected failure, a defect, an abort and a refusal end a call in four ways", async () => {
    const entered = Promise.withResolvers<void>();
    const fail = (error: Error) => () => {
      throw error;
    };
    const service = await serve([
      say("expected", "", fail(new ToolFailure("no paper"))),
      say("defect", "", fail(new Error("secret"))),
      say("hold", "", ({ signal }) => {
        entered.resolve();
        return new Promise((_, reject) =>
          signal.addEventListener("abort", () => reject(signal.reason), { once: true }),
        );
      }),
      defineTool({ name: "asks", description: "", input: z.object({}), execute: () => ({ output: "" }) }),
    ]);
    const { agent, person } = service;
    const sessionId = "ses_test";
    await agent.sessions.createSession({ sessionId });
    const errorOf = async (tool: string) => {
      const { part } = await agent.tools.callTool({ sessionId, callId: tool, tool, input: {} });
      return part?.state.case === "error" ? part.state.value.error : "";
    };
    expect(await errorOf("expected")).toBe("no paper");
    expect(await errorOf("defect")).toMatch(/^The tool "defect" broke/);

    const held = output(service, "hold", { sessionId, callId: "hold" });
    await entered.promise;
    await agent.tools.cancelTool({ sessionId, callId: "hold" });
    expect(await held).toBe("CANCELLED");

    for await (const { event } of agent.tools.executeTool({ sessionId, callId: "asks", tool: "asks", input: {} })) {
      if (event?.event.case !== "permissionAsked") continue;
      const permissionId = event.event.value.id;
      await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.REJECT });
    }
    expect(await output(service, "asks", { sessionId, callId: "asks" })).toBe("REJECTED");
  });

  test("invalid input invokes nothing", async () => {
    const tool = defineTool({
      name: "t",
      description: "",
      input: z.object({ a: z.string() }),
      plan: () => expect.unreachable(),
      execute: () => expect.unreachable(),
    });
    expect(await output(await serve([tool]), "t")).toBe("INVALID_INPUT");
  });
});
