import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import * as z from "zod";
import { coerceScalars, inputCodec, type ValueSchema } from "../../src/tool/codec.ts";

const field = (schema: JsonObject): JsonObject => ({ type: "object", properties: { it: schema } });

test.each<[JsonObject, JsonValue, JsonValue]>([
  [{ type: "number" }, "10", 10],
  [{ type: "number" }, "-1.50", -1.5],
  [{ type: "integer" }, "10", 10],
  [{ type: ["integer", "null"] }, "10", 10],
  [{ type: "boolean" }, "true", true],
  [{ type: "boolean" }, "false", false],
  [{ enum: [1, 2] }, "2", 2],
  [{ type: "integer", enum: [1, 2] }, "2", 2],
  [{ anyOf: [{ type: "number" }, { type: "null" }] }, "3", 3],
  [{ allOf: [{ type: "number" }, { minimum: 1 }] }, "3", 3],
  [{ type: "array", items: { type: "number" } }, ["1", "2"], [1, 2]],
  [{ type: "array", prefixItems: [{ type: "string" }, { type: "number" }] }, ["1", "2"], ["1", 2]],
  [{ type: "object", additionalProperties: { type: "boolean" } }, { a: "true" }, { a: true }],
  [{ anyOf: [{ type: "null" }, { properties: { n: { type: "number" } }, type: "object" }] }, { n: "1" }, { n: 1 }],
])("as %j the value %j is %j", (schema, given, wanted) => {
  expect(coerceScalars({ it: given }, field(schema))).toEqual({ it: wanted });
});

test.each<[JsonObject, JsonValue]>([
  [{ type: "string" }, "10"],
  [{ type: ["string", "number"] }, "10"],
  [{ anyOf: [{ type: "number" }, { type: "string" }] }, "10"],
  [{}, "10"],
  [{ enum: ["1", 1] }, "1"],
  [{ type: "number" }, "1e3"],
  [{ type: "number" }, " 1"],
  [{ type: "number" }, ".5"],
  [{ type: "number" }, "0x10"],
  [{ type: "number" }, "12345678901234567890"],
  [{ type: "number" }, "true"],
  [{ type: "boolean" }, "True"],
  [{ type: "boolean" }, "1"],
  [{ type: "number" }, true],
  [{ type: "null" }, "null"],
])("as %j the value %j stays", (schema, given) => {
  expect(coerceScalars({ it: given }, field(schema))).toEqual({ it: given });
});

test("follows references within the schema", () => {
  const schema = { $defs: { line: { type: "number" } }, type: "object", properties: { at: { $ref: "#/$defs/line" } } };
  expect(coerceScalars({ at: "7" }, schema)).toEqual({ at: 7 });
});

test.each<JsonObject>([
  { $ref: "#" },
  { anyOf: [{ $ref: "#" }, { $ref: "#" }] },
  { type: "object", properties: { at: { anyOf: [{ $ref: "#/properties/at" }, { $ref: "#/properties/at" }] } } },
])("leaves the value if the schema %j refers to itself without an end", (loop) => {
  expect(coerceScalars({ at: "7" }, loop)).toEqual({ at: "7" });
});

test.each([
  ["zod", z.object({ offset: z.int(), all: z.boolean(), name: z.string() })],
  [
    "JSON Schema",
    {
      type: "object",
      properties: { offset: { type: "integer" }, all: { type: "boolean" }, name: { type: "string" } },
      required: ["offset"],
    },
  ],
] satisfies [string, ValueSchema][])(
  "input that fits a schema of %s only as numbers and booleans is accepted",
  (_, schema) => {
    const codec = inputCodec("look", schema);
    expect(codec.decode({ offset: "10", all: "false", name: "12" })).toEqual({ offset: 10, all: false, name: "12" });
    expect(() => codec.decode({ offset: "ten", all: false, name: "12" })).toThrow("offset");
    expect(() => codec.decode({ offset: "1.5", all: false, name: "12" })).toThrow("offset");
  },
);
