import { describe, expect, test } from "vitest";
import * as z from "zod";
import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { defineTool, type ToolConfig } from "../../src/tool/define-tool.ts";
import { createRegistry } from "../../src/tool/registry.ts";
import type { DefinedTool, Plan } from "../../src/tool/tool.ts";
import { serve } from "../call/server.ts";
import { confirmedVersions, presentVersions } from "../tools/built-in-versions.ts";

type Fields = Partial<ToolConfig<z.ZodObject, Plan, never>>;

const say = (word: string, fields: Fields = {}): DefinedTool =>
  defineTool({
    name: "say",
    description: "Says a word.",
    input: z.object({}),
    plan: () => ({ title: "say", asks: [] }),
    execute: () => ({ output: word }),
    ...fields,
  });

type Service = Awaited<ReturnType<typeof serve>>;

async function idOf({ agent }: Pick<Service, "agent">, name = "say"): Promise<string> {
  const { tools } = await agent.tools.listTools({});
  return tools.find((tool) => tool.name === name)?.definitionId ?? "";
}

async function call({ agent }: Pick<Service, "agent">, definitionId: string): Promise<ToolPart["state"]["value"]> {
  return (await agent.tools.callTool({ tool: "say", input: {}, definitionId })).part?.state.value;
}

const stale = { reason: ToolErrorReason.STALE_TOOL };

describe("a definition id names the definition", () => {
  test.each<[string, Fields]>([
    ["description", { description: "Says another word." }],
    ["input schema", { input: z.object({ loud: z.boolean().optional() }) }],
    ["hints", { readOnly: true }],
    ["version", { version: "2" }],
    ["executor, under the same version", {}],
  ])("a tool with another %s is another definition, and the id before is stale", async (_, changed) => {
    const service = await serve([say("one", { version: "1" })]);
    const before = await idOf(service);
    service.register({ say: say("two", { version: "1", ...changed }) });
    expect(await call(service, before)).toMatchObject(stale);
    expect(await call(service, await idOf(service))).toMatchObject({ output: "two" });
  });

  test("another executor without a version is another definition, and the id before is stale", async () => {
    const service = await serve([say("one")]);
    const before = await idOf(service);
    const remove = service.register({ say: say("two") });
    const second = await idOf(service);
    expect(await call(service, before)).toMatchObject(stale);
    remove();
    expect(await call(service, second)).toMatchObject(stale);
    expect(await call(service, before)).toMatchObject({ output: "one" });
  });

  test.each<[string, Fields]>([
    ["a version", { version: "1" }],
    ["none", {}],
  ])("a tool with %s that was removed and registered again is another definition", async (_, fields) => {
    const service = await serve([]);
    const tool = say("one", fields);
    const remove = service.register({ say: tool });
    const first = await idOf(service);
    remove();
    service.register({ say: tool });
    expect(await call(service, first)).toMatchObject(stale);
    expect(await call(service, await idOf(service))).toMatchObject({ output: "one" });
  });

  test("ids are equal on replicas of one build, and differ with the build", async () => {
    const ids = await Promise.all(["7", "7", "8"].map(async (buildId) => idOf(await serve([say("one")], { buildId }))));
    expect(ids[1]).toBe(ids[0]);
    expect(ids[2]).not.toBe(ids[0]);
  });

  test("without version and build each start has its own ids, and warns", async () => {
    const services = await Promise.all([1, 2].map(() => serve([say("one")], { buildId: "" })));
    const [first, second] = await Promise.all(services.map((service) => idOf(service)));
    expect(first).not.toBe(second);
    expect(services[0]?.logged.map(({ message }) => message)).toContainEqual(
      expect.stringContaining("tools without a version: say"),
    );
    const versioned = await serve([say("one", { version: "1" })], { buildId: "" });
    expect(versioned.logged.map(({ message }) => message)).not.toContainEqual(
      expect.stringContaining("tools without a version"),
    );
  });

  test("code of a built-in tool changes only with its version, or once it is confirmed that it behaves the same", () => {
    const [present, confirmed] = [presentVersions(), confirmedVersions()];
    const changed = Object.keys({ ...present, ...confirmed }).filter(
      (name) => JSON.stringify(present[name]) !== JSON.stringify(confirmed[name]),
    );
    expect(
      changed,
      "The code of these tools has changed. If one behaves differently, raise its version in defineTool. Then confirm with: node test/tools/built-in-versions.ts",
    ).toEqual([]);
  });

  test("every built-in tool declares a version", async () => {
    const { agent } = await serve([]);
    const { tools } = await agent.tools.listTools({ agent: "build" });
    expect(Object.keys(presentVersions())).toEqual(expect.arrayContaining(tools.map(({ name }) => name)));
  });
});

describe("a registration", () => {
  const registry = createRegistry();

  test("names its tools: one without a name serves under each key", async () => {
    const { name: _, ...nameless } = { name: "", description: "Says.", input: z.object({}), version: "1" };
    const tool = defineTool({ ...nameless, execute: () => ({ output: "yes" }) });
    const service = await serve([]);
    service.register({ read_twice: tool, write_twice: tool });
    const { tools } = await service.agent.tools.listTools({});
    expect(tools.map(({ name }) => name)).toEqual(expect.arrayContaining(["read_twice", "write_twice"]));
    const { asks } = await service.agent.tools.planTool({ tool: "write_twice", input: {} });
    expect(asks).toMatchObject([{ permission: "write_twice" }]);
  });

  test.each([
    ["an empty object", {}, '"say" is not a tool'],
    ["undefined", undefined, '"say" is not a tool'],
    ["a copy", { ...say("one") }, '"say" is not a tool'],
    ["a renamed copy", Object.freeze({ ...say("one"), name: "read" }), '"say" is not a tool'],
    ["a tool of another name", say("one", { name: "other" }), 'the tool "other" cannot serve as "say"'],
  ])("refuses %s, and registers none of its tools", (_, value, message) => {
    const tools = { fine: say("fine", { name: "fine" }), say: value as DefinedTool };
    expect(() => registry.register(tools)).toThrow(message);
    expect(registry.list("default")).toEqual([]);
  });

  test("refuses a key that cannot be a name", () => {
    const { name: _, ...nameless } = { name: "", description: "Says.", input: z.object({}) };
    expect(() => registry.register({ "no name": defineTool({ ...nameless, execute: () => ({}) }) })).toThrow(
      '"no name" cannot be a tool\'s name',
    );
  });
});
