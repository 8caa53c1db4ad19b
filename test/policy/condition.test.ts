import type { JsonObject } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ConditionError, type Facts, readCondition } from "../../src/policy/condition.ts";
import { inputProblem } from "../../src/policy/condition-schema.ts";

const { DELETE, NETWORK, PACKAGES } = RiskKind;

test.each<[string, Facts, boolean | undefined]>([
  ["contained", { contained: true }, true],
  ["contained", { contained: "writes outside" }, false],
  ["contained", {}, undefined],
  ["!contained", { contained: "writes outside" }, true],
  ["!contained", {}, undefined],
  ["risk.only(['network'])", { risks: [NETWORK] }, true],
  ["risk.only(['network'])", { risks: [NETWORK, DELETE] }, false],
  ["risk.only([])", { risks: [] }, true],
  ["risk.only([])", {}, undefined],
  ["'delete' in risk", { risks: [DELETE] }, true],
  ["'delete' in risk", { risks: [PACKAGES] }, false],
  ["size(risk) <= 1", { risks: [DELETE] }, true],
  ["size(risk) > 1", { risks: [DELETE] }, false],
  ["size(risk) == 1 && contained", { risks: [DELETE], contained: true }, true],
  ["contained && 'delete' in risk", { risks: [NETWORK] }, false],
  ["contained || 'delete' in risk", { risks: [DELETE] }, true],
  ["contained || 'delete' in risk", { risks: [NETWORK] }, undefined],
  ["!(contained && 'network' in risk)", { contained: true, risks: [NETWORK] }, false],
  ["risk == 'network'", { risks: [NETWORK] }, undefined],
  ["size(risk) < 'network'", { risks: [NETWORK] }, undefined],
  ["tool == 'transfer'", { tool: "transfer" }, true],
  ["tool == 'transfer'", {}, undefined],
  ["input.amount <= 100", { input: { amount: 100 } }, true],
  ["input.amount <= 100", { input: { amount: 100.5 } }, false],
  ["input.amount >= -1e2", { input: { amount: -100 } }, true],
  ["input.amount <= 100", { input: { amount: "5" } }, undefined],
  ["input.amount <= 100", { input: { amount: null } }, undefined],
  ["input.amount <= 100", { input: {} }, undefined],
  ["input.amount <= 100", {}, undefined],
  ["input.constructor == 'x'", { input: {} }, undefined],
  ["has(input.constructor)", { input: {} }, false],
  ["has(input.amount)", { input: { amount: null } }, true],
  ["has(input.amount)", {}, undefined],
  ["!has(input.force) || !input.force", { input: {} }, true],
  ["input.to.name == 'ann'", { input: { to: { name: "ann" } } }, true],
  ["input['to'][\"first name\"] == 'ann'", { input: { to: { "first name": "ann" } } }, true],
  ["input.items[1] == 2", { input: { items: [1, 2] } }, true],
  ["input.items[2] == 2", { input: { items: [1, 2] } }, undefined],
  ["input.items['length'] == 2", { input: { items: [1, 2] } }, undefined],
  ["size(input.items) == 2 && 'b' in input.items", { input: { items: ["a", "b"] } }, true],
  ["input.currency in ['EUR', 'USD']", { input: { currency: "GBP" } }, false],
  ["'x' in [input.one, 'x']", { input: {} }, true],
  ["'y' in [input.one, 'x']", { input: {} }, undefined],
  ["input.items == input.items", { input: { items: [] } }, undefined],
  ["input.path.startsWith('docs/') && input.path.endsWith('.md')", { input: { path: "docs/a.md" } }, true],
  ["input.path.contains('..')", { input: { path: "docs/../.env" } }, true],
  ["input.path.contains('a')", { input: { path: "b".repeat(65_537) } }, undefined],
  ["input.path.contains('a')", { input: { path: ["a"] } }, undefined],
  ["risk.only([input.kind])", { risks: [NETWORK], input: {} }, undefined],
  ["risk.only([input.kind, 'network'])", { risks: [NETWORK], input: {} }, true],
])("%s of %o is %s", (text, facts, expected) => {
  expect(readCondition(text).holds(facts)).toBe(expected);
});

describe("a condition is refused", () => {
  test.each([
    ["", "is empty; leave it out where the rule always matches"],
    ["contaned", "has the unknown name contaned; known are contained, risk, input and tool"],
    ["constructor", "has the unknown name constructor; known are contained, risk, input and tool"],
    ["contained &&", "ends too early"],
    ["(contained", "expects ) at its end"],
    ["contained contained", "does not end before contained"],
    ["risk.every(['network'])", "expects only([…]) after risk."],
    ["risk.only(['netwrok'])", "names the risk 'netwrok'; known are credentials, downloaded_code, delete"],
    ["contained; true", 'cannot be read from "; true" on'],
    [`contained${" || contained".repeat(40)}`, "has over 64 parts"],
    [`${"(".repeat(100)}contained${")".repeat(100)}`, "has over 64 parts"],
    [`${"!".repeat(900)}contained`, "has over 64 parts"],
    ["input", "names no field of input; write input.FIELD"],
    ["input.path.matches('.*')", "has the unknown method matches; known are startsWith, endsWith, contains"],
    ["input.path.constructor('x')", "has the unknown method constructor"],
    ["input[contained]", 'expects a key or a place in input[…], such as input["unit price"] or input.items[0]'],
    ["input.items[1.5] == 1", "expects a key or a place"],
    ["has(contained)", "expects a field of the input in has(…)"],
    ["input.a\\n == 1", "cannot be read from"],
    [`input${".a".repeat(70)} == 1`, "has over 64 parts"],
    [`contained${" ".repeat(1_100)}`, "has over 1024 bytes"],
  ])("%s", (text, message) => {
    expect(() => readCondition(text)).toThrow(ConditionError);
    expect(() => readCondition(text)).toThrow(message);
  });
});

test.each<[string, JsonObject, string]>([
  ["input.amount <= 100", { properties: { amount: { type: "integer" } } }, ""],
  [
    "input.amount <= 100",
    { properties: { amount: { type: ["null", "string"] } } },
    "is null or string, and is compared",
  ],
  ["input.amuont <= 100", { properties: { amount: {} } }, "it has no input.amuont"],
  ["input.amuont <= 100", { properties: {}, additionalProperties: true }, ""],
  ["input.amount <= 100", {}, ""],
  [
    "input.to.id == 'a'",
    { properties: { to: { $ref: "#/$defs/to" } }, $defs: { to: { properties: {} } } },
    "no input.to.id",
  ],
  ["input.to.id == 'a'", { anyOf: [{ properties: {} }, { properties: { to: {} } }] }, ""],
  [
    "input.items[0].id == 'a'",
    { properties: { items: { items: { properties: { id: { enum: [1] } } } } } },
    "is number",
  ],
  ["'a' in input.tags", { properties: { tags: { type: "string" } } }, "is string, and is compared as array"],
  ["input.a == 1", { $ref: "#" }, ""],
  ["input.a == 1", { allOf: [{ $ref: "#" }, { $ref: "#" }] }, ""],
])("a condition %s and a tool with the schema %j: %s", (when, inputSchema, problem) => {
  const rule = { permission: "pay", pattern: "*", action: PermissionAction.ALLOW, when };
  const tool = { name: "pay", permissions: undefined, definition: { inputSchema } };
  expect(inputProblem(rule, [tool]) ?? "").toContain(problem);
  expect(inputProblem(rule, [tool]) === undefined).toBe(problem === "");
  // Another tool that asks for it and has the field is meant.
  expect(inputProblem(rule, [tool, { ...tool, definition: { inputSchema: {} } }])).toBe(undefined);
});
