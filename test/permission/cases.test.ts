import { existsSync, readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import * as z from "zod";
import { actions, disabled, evaluate, fromConfig, merge, type Rule } from "../../src/permission/rules.ts";
import { wildcard } from "../../src/permission/wildcard.ts";

const action = z.enum(["allow", "ask", "deny"]);
const rules = z.array(z.object({ permission: z.string(), pattern: z.string(), action }));
const config = z.union([action, z.record(z.string(), z.union([action, z.record(z.string(), action)]))]);
const cases = z.array(
  z.discriminatedUnion("kind", [
    z.object({
      kind: z.literal("wildcard"),
      name: z.string(),
      input: z.object({ text: z.string(), pattern: z.string(), platform: z.string().optional() }),
      expect: z.boolean(),
    }),
    z.object({
      kind: z.literal("evaluate"),
      name: z.string(),
      input: z.object({ permission: z.string(), pattern: z.string(), rulesets: z.array(rules) }),
      expect: action,
    }),
    z.object({
      kind: z.literal("fromConfig"),
      name: z.string(),
      input: z.object({ config, home: z.string() }),
      expect: rules,
    }),
    z.object({
      kind: z.literal("merge"),
      name: z.string(),
      input: z.object({ rulesets: z.array(rules) }),
      expect: rules,
    }),
    z.object({
      kind: z.literal("disabled"),
      name: z.string(),
      input: z.object({ tools: z.array(z.string()), ruleset: rules }),
      expect: z.array(z.string()),
    }),
    z.object({ kind: z.literal("arity"), name: z.string() }),
  ]),
);

const toRules = (list: z.infer<typeof rules>): Rule[] =>
  list.map((rule) => ({ ...rule, action: actions[rule.action] }));

const here = new URL("./cases.json", import.meta.url);
const shared = new URL("../../../shared/cases/permission.json", import.meta.url);
for (const file of [here, shared].filter((file) => existsSync(file))) {
  describe(`opencode's cases in ${file === here ? "test/permission" : "../shared"}`, () => {
    for (const known of cases.parse(JSON.parse(readFileSync(file, "utf8")))) {
      if (known.kind === "arity") continue;
      test(known.name, () => {
        switch (known.kind) {
          case "wildcard": {
            const { text, pattern, platform } = known.input;
            const options = { slashes: true, ignoreCase: platform === "win32" };
            expect(wildcard(text, pattern, options)).toBe(known.expect);
            break;
          }
          case "evaluate": {
            const { permission, pattern, rulesets } = known.input;
            expect(evaluate(permission, pattern, ...rulesets.map(toRules)).action).toBe(actions[known.expect]);
            break;
          }
          case "fromConfig":
            expect(fromConfig(known.input.config, known.input.home)).toEqual(toRules(known.expect));
            break;
          case "merge":
            expect(merge(...known.input.rulesets.map(toRules))).toEqual(toRules(known.expect));
            break;
          case "disabled":
            expect(disabled(known.input.tools, toRules(known.input.ruleset)).sort()).toEqual(known.expect.sort());
            break;
        }
      });
    }
  });
}
