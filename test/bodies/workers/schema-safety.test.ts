import type { JsonObject } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { schemaProblem } from "../../../src/bodies/workers/declared-tool.ts";
import { inputCodec } from "../../../src/tool/codec.ts";

const names = Array.from({ length: 40 }, (_, index) => `a${index}`);
/** Definitions of which each refers twice to the next. */
const doubling = (hold: (next: JsonObject) => JsonObject): JsonObject => ({
  type: "object",
  $ref: "#/$defs/a0",
  $defs: Object.fromEntries(
    names.map((name, at) => [name, hold({ $ref: `#/$defs/a${at + 1}` })]).concat([["a40", {}]]),
  ),
});
const nested = (levels: number): JsonObject => (levels === 0 ? {} : { properties: { a: nested(levels - 1) } });

test.each<[string, JsonObject, string]>([
  ["more than 64 KiB", { type: "object", description: "a".repeat(65_536) }, "bytes as JSON"],
  ["more than 32 levels", nested(17), "32 levels"],
  ["a reference to another document", { $ref: "https://example.com/schema.json" }, "not a place in this schema"],
  ["a reference by anchor", { $ref: "#node", $defs: { node: { $anchor: "node" } } }, "not a place in this schema"],
  ["a base for references", { properties: { a: { $id: "https://example.com/a" } } }, "$id is not supported"],
  ["a dynamic reference", { $dynamicRef: "#a" }, "$dynamicRef is not supported"],
  ["an asynchronous schema", { $async: true }, "$async is not supported"],
  [
    "references that double at each level of the schema",
    doubling((next) => ({ allOf: [next, next] })),
    "too many parts",
  ],
  [
    "references that double at each level of an input",
    doubling((next) => ({ allOf: [{ properties: { a: next } }, { additionalProperties: next }] })),
    "too many parts",
  ],
  ["a reference to itself", { allOf: [{ $ref: "#" }] }, "without end"],
  ["a pattern with long repetitions", { pattern: "(a?){1000}a{1000}" }, "repeat too much"],
  [
    "many patterns",
    { patternProperties: Object.fromEntries(names.map((name) => [`${name}{300}x{300}`, {}])) },
    "repeat",
  ],
])("a schema with %s is refused", (_name, schema, problem) => {
  expect(schemaProblem(schema)).toContain(problem);
});

test("schemas of ordinary tools are accepted, also trees and those with many parts", () => {
  const tree: JsonObject = {
    type: "object",
    properties: {
      name: { type: "string", pattern: "^[a-z][a-z0-9-]{0,62}$" },
      $ref: { type: "string" },
      children: { type: "array", items: { $ref: "#" }, uniqueItems: true },
    },
    patternProperties: { "^x-": { type: "string" } },
    additionalProperties: false,
    // biome-ignore lint/suspicious/noThenProperty: a keyword of JSON Schema.
    allOf: [{ if: { required: ["name"] }, then: { required: ["children"] } }],
  };
  const wide: JsonObject = {
    type: "object",
    properties: Object.fromEntries(names.map((name) => [name, { $ref: "#/$defs/part" }])),
    $defs: { part: { anyOf: [{ type: "string" }, { type: "null" }, { type: "array", items: { type: "integer" } }] } },
  };
  expect(schemaProblem(tree)).toBeUndefined();
  expect(schemaProblem(wide)).toBeUndefined();
  const { decode } = inputCodec("tree", tree);
  expect(() => decode({ name: "a", children: [{ name: "b", children: [] }] })).not.toThrow();
  expect(() => decode({ name: "a", children: [{ "x-a": "1" }, { "x-a": "1" }] })).toThrow("duplicate");
});

test("a pattern with nested repetition takes linear time, and does not match a text that is too long for it", () => {
  const schema: JsonObject = { type: "object", properties: { a: { type: "string", pattern: "^(a|a)*$" } } };
  expect(schemaProblem(schema)).toBeUndefined();
  const { decode } = inputCodec("slow", schema);
  expect(() => decode({ a: `${"a".repeat(26)}!` })).toThrow("pattern");
  expect(() => decode({ a: "a".repeat(1_000) })).not.toThrow();
  expect(() => decode({ a: "a".repeat(2_000_000) })).toThrow("pattern");
  // The budget is that of one check.
  expect(() => decode({ a: "a" })).not.toThrow();
});
