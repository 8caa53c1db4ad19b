import fc from "fast-check";
import { expect, test } from "vitest";
import { fillTemplate } from "../../src/tool/permission-template.ts";

test("two inputs never make one pattern, and no value brings a wildcard", () => {
  const value = fc.oneof(fc.string(), fc.constantFrom("", "a/b", "%2F", "*", "?", "\n", "prod", "pröd"));
  fc.assert(
    fc.property(value, value, value, value, (env, service, otherEnv, otherService) => {
      const [one] = fillTemplate("{env}/{target.service}", { env, target: { service } }) ?? [];
      const [other] =
        fillTemplate("{env}/{target.service}", { env: otherEnv, target: { service: otherService } }) ?? [];
      expect(one === other).toBe(env === otherEnv && service === otherService);
      expect(one).not.toMatch(/[*?\p{Cc}]/u);
    }),
    { numRuns: 500 },
  );
});

test("a list makes a pattern of each element", () => {
  expect(fillTemplate("{hosts}:{port}", { hosts: ["a", "b"], port: 22 })).toEqual(["a:22", "b:22"]);
});

test.each([
  ["an absent field", {}],
  ["a field of the prototype", { toString: undefined } as never],
  ["an object", { env: { name: "prod" } }],
  ["null", { env: null }],
  ["an empty list", { env: [] }],
  ["more elements than a request may have", { env: Array.from({ length: 65 }, String) }],
])("%s fills no template", (_name, input) => {
  expect(fillTemplate("{env}", input)).toBeUndefined();
});
