import { create, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import fc from "fast-check";
import { expect, test } from "vitest";
import { WorkerToolSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { templateAsks, templateProblem, titleOf } from "../../../src/bodies/workers/templates.ts";

const declared = (...patterns: string[]) =>
  create(WorkerToolSchema, { name: "deploy", permissions: [{ permission: "deploy", patterns, always: ["{env}/*"] }] });
const value = fc.oneof(
  fc.string(),
  fc.constantFrom("", "/", "a/b", "%2F", "*", "{", '{"env":"x"}', "\n", "prod", "pröd"),
  fc.constantFrom<JsonValue[]>(1, "1", true, "true", -0.5, "-0.5", '%"1"', '"1"', "1e21", 1e21),
);
/** Fields may be absent. */
const input = fc.record({ env: value, target: fc.record({ service: value }) }, { requiredKeys: [] });

test("two different inputs never ask alike", () => {
  const tools = [declared("{env}/{target.service}"), declared("prod:{env}--{target.service}."), declared("{env}")];
  const askedOf = (tool: (typeof tools)[number], given: JsonObject) =>
    JSON.stringify(templateAsks(tool, given)[0]?.patterns);
  const relevant = (index: number, given: JsonObject) =>
    JSON.stringify(index === 2 ? { env: given.env ?? given } : given);
  fc.assert(
    fc.property(input, input, fc.nat(2), (one, other, index) => {
      const tool = tools[index];
      if (tool === undefined || relevant(index, one) === relevant(index, other)) return;
      expect(askedOf(tool, one)).not.toBe(askedOf(tool, other));
    }),
    { numRuns: 1_000 },
  );
});

test("a text that reads as a number is marked only where the schema allows both", () => {
  const typed = { type: "object", properties: { env: { type: "string" } } };
  const mixed = { type: "object", properties: { env: { type: ["string", "number"] } } };
  const asked = (inputSchema: JsonObject, env: JsonValue) =>
    templateAsks(create(WorkerToolSchema, { ...declared("{env}"), inputSchema }), { env })[0]?.patterns;
  expect(asked(typed, "1")).toEqual(["1"]);
  expect(asked(mixed, "1")).toEqual(['%"1"']);
  expect(asked(mixed, 1)).toEqual(["1"]);
  expect(asked({}, ["true", "yes"])).toEqual(['%"true"', "yes"]);
});

test("an input that lacks a field of the template asks for the whole input", () => {
  expect(templateAsks(declared("{env}/{service}"), { env: "prod" })).toEqual([
    expect.objectContaining({ permission: "deploy", patterns: ['{"env":"prod"}'], wholeCall: true }),
  ]);
});

test("a tool whose templates leave out its own name is asked for by it, too", () => {
  const tool = create(WorkerToolSchema, {
    name: "deploy",
    permissions: [{ permission: "rollout", patterns: ["{env}"], always: ["{env}"], metadata: { risk: "high" } }],
    title: "Deploy to {env}",
  });
  expect(templateAsks(tool, { env: "prod" })).toEqual([
    { permission: "rollout", patterns: ["prod"], always: ["prod"], metadata: { risk: "high" } },
    { permission: "deploy", patterns: ['{"env":"prod"}'], wholeCall: true, metadata: { input: { env: "prod" } } },
  ]);
  expect(titleOf(tool, { env: "prod" })).toBe("Deploy to prod");
  expect(titleOf(tool, {})).toBe("deploy");
});

test.each([
  ["{env}{service}", "nothing between"],
  ["{env}/{}", "belongs to no hole"],
  ["{env", "belongs to no hole"],
  ["{a b}", "belongs to no hole"],
])("the template %s is refused, since two inputs could fill it alike", (pattern, fault) => {
  expect(templateProblem(declared(pattern))).toContain(fault);
  expect(templateProblem(declared("{env}/{target.host}:{port}"))).toBeUndefined();
});
