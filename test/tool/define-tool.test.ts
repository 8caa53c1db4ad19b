import { createHash } from "node:crypto";
import { type JsonObject, toJson } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";
import { describe, expect, test } from "vitest";
import * as z from "zod";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, ToolEffects, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { canonicalJson } from "../../src/core/json.ts";
import { boundTool, defineTool, type ToolConfig } from "../../src/tool/define-tool.ts";
import type { DefinedTool, Plan, Tool } from "../../src/tool/tool.ts";
import { serve } from "../call/server.ts";

const sum = defineTool({
  name: "sum",
  description: "Adds numbers.",
  input: z.object({ numbers: z.array(z.number()) }),
  output: z.object({
    total: z.number(),
    at: z.codec(z.string(), z.date(), { decode: (s) => new Date(s), encode: (d) => d.toISOString() }),
  }),
  plan: () => ({ title: "sum", asks: [] }),
  execute: ({ numbers }) => ({ total: numbers.reduce((a, b) => a + b, 0), at: new Date(0) }),
});

/** Calls a tool to its end; a person approves whatever it asks. */
async function call(tool: DefinedTool, input = {}): Promise<ToolPart["state"]> {
  const { agent, person } = await serve([tool]);
  const sessionId = "ses_test";
  await agent.sessions.createSession({ sessionId });
  const request = { sessionId, callId: "c1", tool: boundTool(tool).name, input };
  for await (const { event } of agent.tools.executeTool(request)) {
    if (event?.event.case === "permissionAsked") {
      const permissionId = event.event.value.id;
      await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    }
  }
  const { part } = await agent.tools.getToolPart({ sessionId, callId: "c1" });
  if (!part) throw new Error("there is no such call");
  return part.state;
}

describe("a tool with an output schema", () => {
  test("completes with the encoded value and shows its JSON to the model", async () => {
    const { value } = await call(sum, { numbers: [1, 2] });
    expect(value).toMatchObject({ status: "completed", output: '{"total":3,"at":"1970-01-01T00:00:00.000Z"}' });
    const structured = value && "structuredOutput" in value ? value.structuredOutput : undefined;
    expect(structured && toJson(ValueSchema, structured)).toEqual({ total: 3, at: "1970-01-01T00:00:00.000Z" });
  });

  test.each([
    [{ type: "video", url: "x" }, 'there is no content of the type "video"'],
    [{ type: "text" }, "text is not a string"],
    [{ type: "media", data: new Uint8Array() }, "media has no mime"],
    [{ type: "media", mime: "image/png", data: "aGk=" }, "data of media is not a Uint8Array"],
  ])("refuses content of toModelOutput that models cannot be shown: %j", async (content, message) => {
    const tool = defineTool({
      name: "shows",
      description: "",
      input: z.object({}),
      output: z.string(),
      execute: () => "x",
      // As code without types may.
      toModelOutput: () => [content as never],
    });
    const { value } = await call(tool);
    expect(value).toMatchObject({ reason: ToolErrorReason.INVALID_OUTPUT, error: expect.stringContaining(message) });
  });

  test("renders input and encoded output for the model with toModelOutput", async () => {
    const { value } = await call(
      defineTool({
        name: "chart",
        description: "Draws.",
        input: z.object({ of: z.string() }),
        output: z.object({ bytes: z.number() }),
        plan: () => ({ title: "chart", asks: [] }),
        execute: () => ({ bytes: 3 }),
        toModelOutput: ({ input, output }) => [
          { type: "text", text: `${input.of}: ${output.bytes} bytes` },
          { type: "media", mime: "image/png", data: new Uint8Array([1, 2, 3]) },
        ],
      }),
      { of: "sales" },
    );
    expect(value).toMatchObject({ output: "sales: 3 bytes", attachments: [{ mime: "image/png", size: 3n }] });
  });

  test("fails with INVALID_OUTPUT, naming the field, if the value does not fit", async () => {
    const { case: state, value } = await call(
      defineTool({
        name: "liar",
        description: "Says a number.",
        input: z.object({}),
        output: z.object({ total: z.number().max(9) }),
        plan: () => ({ title: "liar", asks: [] }),
        execute: () => ({ total: 10 }),
      }),
    );
    expect(state).toBe("error");
    expect(value).toMatchObject({ reason: ToolErrorReason.INVALID_OUTPUT, effects: ToolEffects.UNKNOWN });
    expect(value).toMatchObject({ error: expect.stringMatching(/^The liar tool returned .*\n- total: Too big/) });
  });

  test("stores a value over 51,200 bytes outside the part and links to it", async () => {
    const { value } = await call(
      defineTool({
        name: "long",
        description: "Returns much.",
        input: z.object({}),
        output: z.string(),
        plan: () => ({ title: "long", asks: [] }),
        execute: () => "x".repeat(60_000),
        toModelOutput: () => [{ type: "text", text: "many x" }],
      }),
    );
    expect(value).toMatchObject({
      output: "many x",
      metadata: { structuredPath: expect.stringMatching(/^toolgate-output:/) },
    });
    expect(value).not.toHaveProperty("structuredOutput");
  });

  test("lists its schema; another schema has another definition ID", () => {
    expect(boundTool(sum).definition.outputSchema).toMatchObject({ properties: { at: { type: "string" } } });
    const make = (output: z.ZodType) =>
      boundTool(defineTool({ name: "t", description: "", input: z.object({}), output, execute: () => "" }));
    expect(make(z.string()).definition.definitionId).not.toBe(make(z.string().max(3)).definition.definitionId);
  });
});

describe("a tool without a plan", () => {
  const deploy = defineTool({
    name: "deploy",
    description: "Deploys.",
    input: z.object({ env: z.string(), dry: z.boolean().default(false) }),
    execute: ({ env }) => ({ output: `deployed to ${env}` }),
  });

  test("asks for the permission of its name, with the decoded input as the pattern", async () => {
    const { agent } = await serve([deploy]);
    for await (const { event } of agent.tools.executeTool({ tool: "deploy", input: { env: "prod" } })) {
      if (event?.event.case !== "permissionAsked") continue;
      expect(event.event.value).toMatchObject({ permission: "deploy", patterns: ['{"dry":false,"env":"prod"}'] });
      return;
    }
    expect.unreachable("nothing was asked");
  });

  test("runs the approved input", async () => {
    expect((await call(deploy, { env: "prod" })).value).toMatchObject({ title: "deploy", output: "deployed to prod" });
  });

  test("shows an input that is too long by its hash", async () => {
    const env = "x".repeat(10_000);
    const bound = boundTool(deploy);
    const { patterns } = (await bound.plan(bound.decode({ env }), planContext)).asks[0] ?? { patterns: [] };
    const whole = JSON.stringify({ dry: false, env });
    expect(patterns[0]).toHaveLength(8_192 + "… sha256:".length + 64);
    expect(patterns[0]).toContain(createHash("sha256").update(whole).digest("hex"));
  });

  test("does not ask again for its own permission, only for others", async () => {
    const asked: string[] = [];
    const tool = defineTool({
      name: "greedy",
      description: "Asks in its body.",
      input: z.object({}),
      async execute(_input, ctx) {
        await ctx.ask({ permission: "greedy", patterns: ["more"] });
        await ctx.ask({ permission: "other", patterns: ["else"] });
        return { output: "done" };
      },
    });
    const { agent, person } = await serve([tool]);
    const sessionId = "ses_test";
    await agent.sessions.createSession({ sessionId });
    for await (const { event } of agent.tools.executeTool({ sessionId, callId: "c1", tool: "greedy", input: {} })) {
      if (event?.event.case !== "permissionAsked") continue;
      const { id: permissionId, permission } = event.event.value;
      asked.push(permission);
      await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    }
    expect(asked).toEqual(["greedy", "other"]);
  });
});

describe("a tool with a JSON Schema", () => {
  const search = defineTool({
    name: "search",
    description: "Searches.",
    input: {
      type: "object",
      properties: { q: { type: "string" }, limit: { type: "integer", default: 10 } },
      required: ["q"],
      additionalProperties: false,
    },
    plan: () => ({ title: "search", asks: [] }),
    execute: (input) => ({ output: JSON.stringify(input) }),
  });

  test("gets valid input with defaults filled in; the caller's object is unchanged", () => {
    const input = { q: "a" };
    expect(boundTool(search).decode(input)).toEqual({ q: "a", limit: 10 });
    expect(input).toEqual({ q: "a" });
  });

  test("does not run with invalid input; the error names each field", async () => {
    const { value } = await call(search, { limit: "three", other: 1 });
    expect(value).toMatchObject({
      reason: ToolErrorReason.INVALID_INPUT,
      error: expect.stringMatching(
        /must have required property 'q'.*\n.*additional properties: other.*\n- limit: must be integer/,
      ),
    });
  });

  test("may be of draft-07", () => {
    const $schema = "http://json-schema.org/draft-07/schema#";
    const input = { $schema, type: "object", properties: { p: { type: "array", items: [{ type: "number" }] } } };
    const old = boundTool(defineTool({ name: "old", description: "", input, execute: () => ({ output: "" }) }));
    expect(() => old.decode({ p: ["x"] })).toThrow("- p.0: must be number");
  });

  test("is refused by defineTool if the schema is invalid", () => {
    expect(() => defineTool({ name: "bad", description: "", input: { type: "nothing" }, execute: () => ({}) })).toThrow(
      'tool "bad" has an invalid JSON Schema',
    );
  });

  test("matches its patterns in linear time", () => {
    const input = {
      type: "object",
      properties: { a: { type: "string", pattern: "^(a+)+$" }, b: { type: "string", pattern: "^\\u0041\\d{2}$" } },
      patternProperties: { "^x-(\\w+)*$": { type: "number" } },
    };
    const tool = boundTool(defineTool({ name: "ok", description: "", input, execute: () => ({ output: "" }) }));
    // A backtracking engine would take longer than the universe has existed.
    expect(() => tool.decode({ a: `${"a".repeat(5_000)}!` })).toThrow("must match pattern");
    expect(() => tool.decode({ b: "A1" })).toThrow("must match pattern");
    expect(tool.decode({ a: "aa", b: "A12", "x-y": 1 })).toEqual({ a: "aa", b: "A12", "x-y": 1 });
    expect(() => tool.decode({ "x-y": "z" })).toThrow("must be number");
  });

  test.each([
    ["leads to another document", { $ref: "https://example.com/schema.json" }],
    ["leads to another document", { type: "object", properties: { a: { $ref: "other.json#/a" } } }],
    ["more than 100 levels", JSON.parse(`${'{"not":'.repeat(150)}{}${"}".repeat(150)}`)],
    ["cannot be matched in linear time", { type: "object", properties: { a: { type: "string", pattern: "(a)\\1" } } }],
    ["at most 262144", { description: "x".repeat(300_000) }],
  ])("is refused by defineTool if the schema %s", (why, input) => {
    expect(() => defineTool({ name: "bad", description: "", input, execute: () => ({ output: "" }) })).toThrow(why);
  });
});

test("a tool's own timeout ends its call", async () => {
  const { value } = await call(
    defineTool({
      name: "slow",
      description: "Waits.",
      input: z.object({}),
      timeoutMs: 20,
      plan: () => ({ title: "slow", asks: [] }),
      execute: (_input, { signal }) =>
        new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason), { once: true })),
    }),
  );
  expect(value).toMatchObject({ reason: ToolErrorReason.TIMEOUT });
});

test('a grant of "always" ends with permissionVersion or input schema, not with version', async () => {
  const deploy = (changed: { version?: string; permissionVersion?: string }, field = "to") =>
    defineTool({
      name: "deploy",
      description: "Deploys.",
      input: z.object({ [field]: z.string().optional() }),
      plan: () => ({ title: "deploy", asks: [{ permission: "deploy", patterns: ["production"] }] }),
      execute: () => ({ output: "deployed" }),
      ...changed,
    });
  const { agent, person, register } = await serve([deploy({})]);
  const sessionId = "ses_test";
  await agent.sessions.createSession({ sessionId });
  let calls = 0;
  const isAsked = async () => {
    let asked = false;
    calls += 1;
    // Of the same input the third call in a row would be asked about for itself.
    const request = { sessionId, callId: `c${calls}`, tool: "deploy", input: { to: `${calls}` } };
    for await (const { event } of agent.tools.executeTool(request)) {
      if (event?.event.case !== "permissionAsked") continue;
      asked = true;
      const { id: permissionId } = event.event.value;
      await person.permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ALWAYS });
    }
    return asked;
  };
  expect([await isAsked(), await isAsked()]).toEqual([true, false]);
  const remove = register({ deploy: deploy({ version: "2" }) });
  expect(await isAsked()).toBe(false);
  remove();
  register({ deploy: deploy({ permissionVersion: "2" }) });
  expect([await isAsked(), await isAsked()]).toEqual([true, false]);
  register({ deploy: deploy({ permissionVersion: "2" }, "place") });
  expect(await isAsked()).toBe(true);
});

test.each(["", "1st", "a b", "ä", "x".repeat(65), "_x", "a.b"])("%j is not a valid tool name", (name) => {
  expect(() => defineTool({ name, description: "", input: z.object({}), execute: () => ({}) })).toThrow(
    `${JSON.stringify(name)} cannot be a tool's name`,
  );
});

const planContext = {
  sessionId: "ses_test",
  callId: "c1",
  agent: "build",
  workspace: { name: "default", directory: "/", resolve: () => Promise.reject(new Error("no path is resolved")) },
  environment: async () => ({}),
  judge: Object.assign(() => expect.unreachable("nothing is judged"), {
    restrictedNameHints: () => expect.unreachable("nothing is searched"),
    fileRules: () => expect.unreachable("nothing is hidden"),
  }),
  reads: { get: async () => undefined },
};

describe("templates of permissions", () => {
  const fields = { name: "deploy", description: "Deploys.", input: z.object({ env: z.string().optional() }) };
  const make = (permissions: ToolConfig<typeof fields.input, Plan, never>["permissions"]) =>
    boundTool(defineTool({ ...fields, ...(permissions && { permissions }), execute: () => ({ output: "" }) }));

  test("a call asks for its templates, filled with fields of the input", async () => {
    const tool = make([{ patterns: ["{env}/*"] }, { permission: "traffic", patterns: ["{env}"] }]);
    const { asks } = await tool.plan(tool.decode({ env: "a/b" }), planContext);
    expect(asks).toMatchObject([
      { permission: "deploy", patterns: ["a%2Fb/*"] },
      { permission: "traffic", patterns: ["a/b"] },
    ]);
    expect(tool.permissions).toEqual(["deploy", "traffic"]);
  });

  test("a template whose field is absent asks for the whole input, and so does the tool's own permission", async () => {
    const tool = make([{ permission: "traffic", patterns: ["{env}"] }]);
    const { asks } = await tool.plan(tool.decode({}), planContext);
    expect(asks).toMatchObject([
      { permission: "traffic", patterns: ["{}"] },
      { permission: "deploy", patterns: ["{}"], wholeCall: true },
    ]);
  });

  test("templates beside a plan are refused", () => {
    const config = { ...fields, permissions: [{ patterns: ["{env}"] }], execute: () => ({ output: "" }) };
    expect(() => defineTool({ ...config, plan: () => ({ title: "", asks: [] }) })).toThrow("a plan and templates");
  });
});

describe("a tool that asks bash for its whole input", () => {
  const fields = { description: "Runs.", input: z.record(z.string(), z.json()), execute: () => ({ output: "" }) };
  const named = boundTool(defineTool({ ...fields, name: "bash" }));
  const permissions = [{ permission: "bash", patterns: ["{none}"] }];
  const templated = boundTool(defineTool({ ...fields, name: "runner", permissions }));
  const asksOf = async (tool: Tool, input: JsonObject) => (await tool.plan(tool.decode(input), planContext)).asks;

  test.each<[JsonObject, object]>([
    [{ command: "echo hi", timeout: 5 }, { patterns: ["echo hi"] }],
    [
      { cmd: "ls", cwd: "src" },
      { patterns: ["ls"], cwd: "src" },
    ],
    [
      { command: "ls", workdir: "/srv" },
      { patterns: ["ls"], cwd: "/srv" },
    ],
  ])("asks for the line in %j", async (input, ask) => {
    const wanted = { permission: "bash", ...ask };
    expect(await asksOf(named, input)).toEqual([{ ...wanted, wholeCall: true }]);
    expect((await asksOf(templated, input))[0]).toMatchObject(wanted);
  });

  test.each<JsonObject>([
    { script: "echo hi" },
    { command: ["echo", "hi"] },
    { command: " " },
    { command: "echo hi", cmd: "rm -rf x" },
    { command: "echo hi", cwd: "a", workdir: "b" },
    { command: "echo hi", workdir: 7 },
  ])("asks for %j as a text, since it is not clear which line runs where", async (input) => {
    const wanted = { permission: "bash", patterns: [canonicalJson(input)], isText: true };
    expect(await asksOf(named, input)).toEqual([{ ...wanted, wholeCall: true }]);
    expect((await asksOf(templated, input))[0]).toMatchObject(wanted);
  });

  test.each([
    ["*", PermissionAction.ALLOW],
    ["echo *", PermissionAction.ASK],
    ["{*", PermissionAction.ASK],
    ["*hostname*", PermissionAction.ASK],
  ])("a text and a rule that allows %j: %i", async (pattern, action) => {
    const { agent } = await serve([named]);
    const rules = [{ permission: "bash", pattern, action: PermissionAction.ALLOW }];
    const plan = await agent.tools.planTool({
      tool: "bash",
      input: { script: "$(cat /etc/hostname)", times: 2 },
      rules,
      onlyRules: true,
    });
    expect(plan.action).toBe(action);
    expect(plan.decisions.map(({ permission }) => permission)).toEqual(["bash"]);
  });
});
