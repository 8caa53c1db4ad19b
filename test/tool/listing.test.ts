import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import * as z from "zod";
import { boundTool, defineTool } from "../../src/tool/define-tool.ts";
import { offeredTo, schemaFor } from "../../src/tool/registry.ts";
import type { ChangeForm } from "../../src/tool/tool.ts";
import { serve } from "../call/server.ts";

const named = (name: string, options: { providers?: string[]; experimental?: boolean; changeForm?: ChangeForm } = {}) =>
  defineTool({
    name,
    description: "",
    input: z.object({ n: z.literal([1, 2]).describe("How many.") }),
    execute: () => ({}),
    ...options,
  });

describe("ListTools", () => {
  test("lists by name, with JSON Schemas of draft 2020-12", async () => {
    const { agent } = await serve([named("zebra"), named("apple")]);
    const { tools } = await agent.tools.listTools({});
    const names = tools.map(({ name }) => name);
    expect(names).toEqual(names.toSorted());
    expect(names).toEqual(expect.arrayContaining(["apple", "echo", "zebra"]));
    for (const { inputSchema } of tools) {
      expect(inputSchema).toMatchObject({ $schema: "https://json-schema.org/draft/2020-12/schema", type: "object" });
    }
  });

  test("hides tools for other providers", async () => {
    const { agent } = await serve([named("special", { providers: ["acme"] })]);
    const has = async (providerId: string) =>
      (await agent.tools.listTools({ providerId })).tools.some(({ name }) => name === "special");
    expect(await Promise.all([has("acme"), has("other"), has("")])).toEqual([true, false, true]);
  });

  test("converts schemas to the dialect of the model's provider", async () => {
    const { agent } = await serve([named("count")]);
    const schemaOf = async (request: object) =>
      (await agent.tools.listTools(request)).tools.find(({ name }) => name === "count")?.inputSchema;
    expect(await schemaOf({})).toMatchObject({ properties: { n: { enum: [1, 2], description: "How many." } } });
    expect(await schemaOf({ providerId: "google" })).toMatchObject({
      properties: { n: { description: "How many. One of 1, 2." } },
    });
  });

  test("lists an experimental tool only if the configuration names it", async () => {
    const tools = [named("rehearse", { experimental: true })];
    const off = await serve(tools);
    const on = await serve(tools, { experimental: ["rehearse"] });
    const has = async ({ agent }: typeof off) =>
      (await agent.tools.listTools({})).tools.some(({ name }) => name === "rehearse");
    expect([await has(off), await has(on)]).toEqual([false, true]);
    off.register({ rehearse: named("rehearse", { experimental: true }) });
    expect(await has(off)).toBe(false);
    const { part } = await off.agent.tools.callTool({ tool: "rehearse", input: { n: 1 } });
    expect(part?.state.case).toBe("error");
  });
});

describe("of the tools that change files a model is offered", () => {
  const forms: Record<string, ChangeForm> = {
    apply_patch: "patch",
    edit: "replace",
    multiedit: "replace",
    write: "replace",
  };
  const offered = (modelId: string, names: string[]) =>
    offeredTo(
      { providerId: "", modelId },
      names.map((name) => boundTool(named(name, { ...(forms[name] && { changeForm: forms[name] }) }))),
    ).map(({ name }) => name);
  const all = ["apply_patch", "edit", "multiedit", "read", "write"];

  test.each([
    ["gpt-5", ["apply_patch", "read"]],
    ["gpt-4.1", ["edit", "multiedit", "read", "write"]],
    ["gpt-oss-120b", ["edit", "multiedit", "read", "write"]],
    ["claude-sonnet-5", ["edit", "multiedit", "read", "write"]],
    ["", ["edit", "multiedit", "read", "write"]],
  ])("%j: %j", (model, names) => expect(offered(model, all)).toEqual(names));

  test("edit and write where there is no apply_patch", () => {
    expect(offered("gpt-5", ["edit", "read", "write"])).toEqual(["edit", "read", "write"]);
  });
});

describe("a schema for OpenAI's strict mode", () => {
  const openai = { providerId: "openai", modelId: "gpt-5" };

  test("closes objects, requires every field, and takes null for optional ones", () => {
    const written = {
      type: "object",
      properties: {
        path: { type: "string", minLength: 1, description: "A path" },
        kind: { type: "string", enum: ["a", "b"], default: "a", description: "A kind" },
        place: { type: "object", properties: { line: { type: "integer" } } },
        list: { type: "array", items: { oneOf: [{ type: "string" }, { $ref: "#/$defs/x" }] } },
      },
      required: ["path", "list"],
      $defs: { x: { type: "object", properties: {}, additionalProperties: false } },
    };
    const closed = { additionalProperties: false };
    expect(schemaFor(openai, written)).toEqual({
      type: "object",
      properties: {
        path: { type: "string", description: "A path" },
        kind: { type: ["string", "null"], enum: ["a", "b", null], description: 'A kind. Default: "a".' },
        place: {
          anyOf: [
            {
              type: "object",
              properties: { line: { type: ["integer", "null"] } },
              required: ["line"],
              ...closed,
            },
            { type: "null" },
          ],
        },
        list: { type: "array", items: { anyOf: [{ type: "string" }, { $ref: "#/$defs/x" }] } },
      },
      required: ["path", "kind", "place", "list"],
      ...closed,
      $defs: { x: { type: "object", properties: {}, required: [], ...closed } },
    });
  });

  test.each([
    ["an object with any keys", { type: "object", additionalProperties: { type: "string" } }],
    ["any value", {}],
    ["an array without items", { type: "array" }],
    ["allOf", { allOf: [{ type: "string" }] }],
  ])("stays as it is with %s", (_, field) => {
    const schema: JsonObject = { type: "object", properties: { field } };
    expect(schemaFor(openai, schema)).toBe(schema);
  });

  test("of each built-in tool fits, and nulls of optional fields are read as absent", async () => {
    const { agent } = await serve([]);
    const { tools } = await agent.tools.listTools({ ...{ providerId: "openai" }, agent: "build" });
    const isStrict = ({ inputSchema = {} }: (typeof tools)[number]) => inputSchema.additionalProperties === false;
    const open = tools.filter((tool) => !isStrict(tool)).map(({ name }) => name);
    // Their inputs hold those of other tools.
    expect(open).toEqual(["batch", "invalid", "lsp_code_action_resolve"].filter((name) => open.includes(name)));
    const input = { command: "ls", workdir: null, timeout: null, description: null };
    const planned = await agent.tools.planTool({ tool: "bash", input });
    expect(planned).toMatchObject({ title: "ls" });
  });
});

describe("a schema for Gemini", () => {
  const gemini = { providerId: "google", modelId: "gemini-3" };
  const keyword = fc.constantFrom("type", "enum", "items", "properties", "required", "description", "anyOf", "const");
  const schema: fc.Arbitrary<JsonObject> = fc.letrec<{ schema: JsonObject; value: JsonValue }>((tie) => ({
    value: fc.oneof(
      { depthSize: "small" },
      fc.constantFrom("string", "integer", "array", "object"),
      fc.array(fc.oneof(fc.integer(), fc.string()), { maxLength: 3 }),
      tie("schema"),
    ),
    schema: fc.dictionary(keyword, tie("value"), { maxKeys: 4 }),
  })).schema;

  test("is idempotent, and the tool's schema is unchanged", () => {
    fc.assert(
      fc.property(schema, (schema) => {
        const before = structuredClone(schema);
        const once = schemaFor(gemini, schema);
        expect(schema).toEqual(before);
        const again = schemaFor(gemini, once);
        expect(again).toEqual(once);
        expect(schemaFor({ providerId: "anthropic", modelId: "claude" }, schema)).toBe(schema);
      }),
    );
  });

  test("has no enum of numbers, no array without items, no required name without a property", () => {
    const written = {
      type: "object",
      properties: {
        size: { type: "integer", enum: [1, 2] },
        list: { type: "array" },
        text: { type: "string", properties: {}, required: ["x"] },
      },
      required: ["size", "gone"],
    };
    expect(schemaFor(gemini, written)).toEqual({
      type: "object",
      properties: {
        size: { type: "integer", description: "One of 1, 2." },
        list: { type: "array", items: { type: "string" } },
        text: { type: "string" },
      },
      required: ["size"],
    });
  });
});
