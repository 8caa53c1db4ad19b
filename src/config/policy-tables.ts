import { z } from "zod";
import { parseRules, RuleError } from "../policy/parse-rules.ts";
import { strictTable } from "./check.ts";

/** The name of an agent, a workspace root or a token. */
export const name = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/, {
  error: "a name is 1 to 64 letters, digits, dots, dashes or underscores",
});

const rules = z.unknown().superRefine((table, context) => {
  try {
    parseRules(table, "", "");
  } catch (error) {
    if (!(error instanceof RuleError)) throw error;
    context.addIssue({ code: "custom", path: error.path.slice(1), message: error.problem });
  }
});

/** A test of the rules by their author; it runs at each start. */
export const permissionTest = strictTable({
  permission: z.string().min(1),
  pattern: z.string().min(1),
  expect: z.enum(["allow", "ask", "deny"]),
  agent: name.optional(),
});

/** The permission settings of a configuration, which are all that `.opencode/config.toml` of a workspace may contain. */
export const policyTables = {
  permission: rules.optional(),
  agent: z.record(name, strictTable({ description: z.string().optional(), permission: rules.optional() })).optional(),
};
