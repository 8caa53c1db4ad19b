import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { Ajv2020 } from "ajv/dist/2020.js";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { emptyDraft, type Field, readProblems, readSchema } from "../../src/console/schema-form/field.ts";
import { InvalidInput } from "../../src/tool/errors.ts";

const properties = (schema: JsonObject): Readonly<Record<string, Field>> => {
  const { shape } = readSchema(schema);
  return shape.kind === "object" ? Object.fromEntries(shape.fields.map((field) => [field.name, field])) : {};
};
const object = (fields: JsonObject, rest: JsonObject = {}): JsonObject => ({
  type: "object",
  properties: fields,
  ...rest,
});
const kindOf = (schema: JsonObject, rest: JsonObject = {}) => properties(object({ x: schema }, rest)).x?.shape.kind;

test.each<[JsonObject, string]>([
  [{ type: "string" }, "text"],
  [{ type: ["string", "null"] }, "text"],
  [{ anyOf: [{ type: "string" }, { type: "null" }] }, "text"],
  [{ type: "integer" }, "number"],
  [{ enum: ["a", 1, null] }, "choice"],
  [{ const: "a" }, "choice"],
  [{ oneOf: [{ const: "a", title: "A" }, { const: "b" }] }, "choice"],
  [{ type: "array", items: { type: "number" } }, "list"],
  [{ properties: { a: {} } }, "object"],
  [{ type: "object", additionalProperties: { type: "string" } }, "json"],
  [{ anyOf: [{ type: "string" }, { type: "number" }] }, "json"],
  [{ type: "array", prefixItems: [{ type: "string" }] }, "json"],
  [{}, "json"],
])("%j is a field of the kind %s", (schema, kind) => {
  expect(kindOf(schema)).toBe(kind);
});

test("references of both drafts are followed, and a recursive schema becomes a JSON field", () => {
  const node = object({ name: { type: "string" }, next: { $ref: "#/$defs/node" } });
  const { x } = properties(object({ x: { $ref: "#/$defs/node", description: "The first" } }, { $defs: { node } }));
  expect(x?.description).toBe("The first");
  expect(x?.shape).toMatchObject({ fields: [{ shape: { kind: "text" } }, { name: "next", shape: { kind: "json" } }] });
  expect(kindOf({ $ref: "#/definitions/a~1b" }, { definitions: { "a/b": { type: "boolean" } } })).toBe("boolean");
  expect(kindOf({ $ref: "#/nowhere" })).toBe("json");
  expect(kindOf({ $ref: "https://example.org/schema" })).toBe("json");
});

test("limits and defaults are shown in words", () => {
  const { x } = properties(object({ x: { type: "integer", minimum: 1, maximum: 9_007_199_254_740_991, default: 3 } }));
  expect(x).toMatchObject({ hints: ["at least 1"], fallback: 3, isRequired: false });
});

/** Schemas as tools write them, without limits, so that empty values are valid. */
const schemas = fc.letrec<{ value: JsonObject; object: JsonObject }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 3 },
    fc.constantFrom<JsonObject>({ type: "string" }, { type: "boolean" }, { const: "only" }),
    fc.record({ type: fc.constant("array"), items: tie("value") }),
    tie("object"),
  ),
  object: fc
    .dictionary(fc.stringMatching(/^[a-z]{1,5}$/), tie("value"), { maxKeys: 4 })
    .map((fields) => object(fields, { required: Object.keys(fields).slice(0, 2), additionalProperties: false })),
}));

test("the initial value of a form is valid for its schema", () => {
  const ajv = new Ajv2020({ strict: false });
  fc.assert(
    fc.property(schemas.object, (schema) => {
      expect(ajv.validate(schema, emptyDraft(readSchema(schema)))).toBe(true);
    }),
  );
});

test("any JSON as a schema yields a form", () => {
  const words = ["type", "properties", "items", "anyOf", "oneOf", "enum", "const", "$ref", "required", "default"];
  const values = fc.oneof(fc.jsonValue(), fc.constantFrom("object", "array", "string", "#", "#/properties/a"));
  const { value } = fc.letrec<{ value: unknown }>((tie) => ({
    value: fc.oneof({ maxDepth: 4 }, values, fc.dictionary(fc.constantFrom(...words, "a"), tie("value"))),
  }));
  fc.assert(
    fc.property(value, (written) => {
      const schema: JsonValue = JSON.parse(JSON.stringify(written));
      if (typeof schema !== "object" || schema === null || Array.isArray(schema)) return;
      expect(typeof readSchema(schema).shape.kind).toBe("string");
    }),
  );
});

describe("a validation error of the service", () => {
  const field = readSchema(
    object({
      name: { type: "string" },
      todos: { type: "array", items: object({ status: { type: "string" } }) },
      input: { type: "string" },
    }),
  );
  const said = (...issues: { path: string; message: string }[]) =>
    readProblems(new InvalidInput("x", issues).message, field);

  test("is shown at its field, also within lists", () => {
    const { at, rest } = said(
      { path: "name", message: "Too small: at least 2" },
      { path: "todos.1.status", message: "Invalid option" },
    );
    expect([...at]).toEqual([
      ["name", "Too small: at least 2"],
      ["todos.1.status", "Invalid option"],
    ]);
    expect(rest).toBe("");
  });

  test("is shown at the missing field, although the service names the object", () => {
    const { at } = said(
      { path: "", message: "must have required property 'name'" },
      { path: "todos.0", message: "must have required property 'status'" },
    );
    expect([...at]).toEqual([
      ["name", "is required"],
      ["todos.0.status", "is required"],
    ]);
  });

  test("is shown unchanged if it concerns no field of the form", () => {
    const issue = { path: "", message: "must NOT have additional properties: extra" };
    expect(said(issue).rest).toContain("must NOT have additional properties: extra");
    const both = said(issue, { path: "name", message: "Too small" });
    expect(both.at.get("name")).toBe("Too small");
    expect(both.rest).toContain("additional properties: extra");
    expect(readProblems("the service does not answer", field)).toEqual({
      at: new Map(),
      rest: "the service does not answer",
    });
  });
});
