/** Registration of tools in a program that embeds the service. */
import { expect, test } from "vitest";
import * as z from "zod";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { toolFrom } from "../../src/testing.ts";
import { defineTool, Tool } from "../../src/tool/plugin.ts";
import { serve } from "../call/server.ts";
import { block } from "./blocks.ts";

type Service = Awaited<ReturnType<typeof serve>>;

/** Calls a tool, and approves what it asks. */
async function call({ agent, person }: Service, tool: string, input = {}) {
  const { session } = await agent.sessions.createSession({});
  const sessionId = session?.id ?? "";
  for await (const { event } of agent.tools.executeTool({ sessionId, callId: "c1", tool, input })) {
    if (event?.event.case !== "permissionAsked") continue;
    const { id: permissionId } = event.event.value;
    await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  }
  return (await agent.tools.getToolPart({ sessionId, callId: "c1" })).part?.state.value;
}

test("row 140: a tool with id and init registers, by the ordered lines, and runs", async () => {
  const service = await serve([]);
  const ToolRegistry = { register: (tool: { id: string }) => service.register({ [tool.id]: tool as object }) };
  const run = new Function("ToolRegistry", "z", "result", `return (async () => { ${block("002.20")} })()`);
  await run(ToolRegistry, z, "the result");
  expect(await call(service, "my_custom_tool", { input: "x" })).toMatchObject({
    title: "Success",
    output: "the result",
  });
});

test("rows 140, 196: a value of Tool.define registers under its name, and under no other", async () => {
  const service = await serve([]);
  const shout = Tool.define({
    args: { text: { type: "string" } },
    description: "Shouts",
    execute: ({ text }) => String(text).toUpperCase(),
  });
  const remove = await service.register({ shout });
  expect(await call(service, "shout", { text: "hi" })).toMatchObject({ output: "HI" });
  remove();
  const made = Tool.define("made", { description: "", parameters: z.object({}), execute: () => 42 });
  await expect(service.register({ other: made })).rejects.toThrow('the tool "made" cannot serve as "other"');
  await expect(service.register({ none: {} })).rejects.toThrow("it has neither init nor execute");
});

const parts = { description: "Adds one", input: z.object({ n: z.number() }), output: z.number() };
const one = defineTool({ ...parts, name: "one", execute: ({ n }) => n + 1 });

test.each([
  ["defineTool", async () => one],
  ["toolFrom", async () => await toolFrom("one", { ...parts, args: { n: z.number() }, execute: () => 1 })],
])("row 195: what %s returns has no schema and no executor, and only the service runs it", async (_, make) => {
  const tool = await make();
  expect(Reflect.ownKeys(tool)).toEqual([]);
  expect(Object.getPrototypeOf(tool)).toBe(Object.prototype);
  expect(Object.isFrozen(tool)).toBe(true);
  // @ts-expect-error: the type has no such field either.
  expect(tool.execute).toBeUndefined();
  const service = await serve([]);
  service.register({ one: tool });
  expect(await call(service, "one", { n: 1 })).toMatchObject({ status: "completed" });
  await expect(service.register({ copy: { ...tool } as object })).rejects.toThrow('"copy" is not a tool');
});
