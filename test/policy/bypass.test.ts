import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdir, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import type { JsonObject } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { beforeAll, describe, expect, test } from "vitest";
import * as z from "zod";
import { actions, fromConfig, type Rule } from "../../src/policy/rules.ts";
import { isBroad } from "../breadth.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";
import { otherTools } from "./other-tools.ts";
import { moreVariants } from "./shell/more-variants.ts";
import { variants } from "./shell/variants.ts";

const rule = z.object({ permission: z.string(), pattern: z.string(), action: z.enum(["allow", "ask", "deny"]) });
const known = z.object({
  id: z.string(),
  rules: z.array(rule),
  tool: z.string(),
  input: z.custom<JsonObject>((value) => typeof value === "object"),
  expect: z.enum(["allow", "ask", "deny", "error"]),
  setup: z.array(z.string()).default([]),
  race: z.array(z.string()).default([]),
});

/** Accepted outcomes of a case: a stricter one than expected is fine, except for `allow`. */
const accepted = {
  allow: ["allow"],
  ask: ["ask", "deny", "error"],
  deny: ["deny", "error"],
  error: ["error"],
};

const service = useService();
/** The directory that the cases use as workspace. */
const assumed = "/srv/project";

beforeAll(async () => {
  for (const directory of ["src", "docs", "packages/a"])
    await mkdir(join(service.workspace, directory), { recursive: true });
  for (const file of [
    "src/a.ts",
    "src/b.ts",
    "src/data.txt",
    "docs/a.md",
    "README.md",
    "data.txt",
    ".env",
    "package.json",
  ]) {
    await writeFile(join(service.workspace, file), "{}\n");
  }
  const links = { link: "/etc", dangling: "/nonexistent/x", inside: "src/a.ts", hidden: ".env" };
  for (const [name, target] of Object.entries(links)) await symlink(target, join(service.workspace, name));
});

let client: ReturnType<typeof connect>["tools"] | undefined;

async function outcome(tool: string, input: JsonObject, rules: readonly Rule[]): Promise<string> {
  const placed = (text: string) => text.replaceAll(assumed, service.workspace);
  try {
    // One connection for all: a service accepts 512 from this machine.
    client ??= connect(service, "caller").tools;
    const plan = await client.planTool({
      tool,
      input: JSON.parse(placed(JSON.stringify(input))),
      rules: rules.map((rule) => ({ ...rule, pattern: placed(rule.pattern) })),
      onlyRules: true,
    });
    const word = Object.entries(actions).find(([, action]) => action === plan.action)?.[0] ?? "none";
    // A call whose check fails ends without an ask; a case that rules allow counts as allowed all the same.
    return plan.problem && word !== "allow" ? "error" : word;
  } catch (cause) {
    // So many hostile lines at once use up the budget of analysis of a principal, which is refilled within seconds.
    if (cause instanceof ConnectError && cause.code === Code.ResourceExhausted) {
      await setTimeout(500);
      return await outcome(tool, input, rules);
    }
    if (cause instanceof ConnectError) return "error";
    throw cause;
  }
}

const cases = z.array(known).parse(JSON.parse(readFileSync(new URL("./bypass.json", import.meta.url), "utf8")));
// The tests of the tools cover files that are replaced between check and use.
test.each(cases.filter(({ race }) => race.length === 0))("$id is judged $expect", async (one) => {
  // Planning resolves no names.
  for (const step of one.setup.filter((step) => !step.startsWith("resolver stub:")))
    execFileSync("/bin/bash", ["-c", step], { cwd: service.workspace });
  const rules = one.rules.map((rule) => ({ ...rule, action: actions[rule.action] }));
  expect(accepted[one.expect]).toContain(await outcome(one.tool, one.input, rules));
});

/** Every third line; `npm run test:breadth` judges the others. */
const judged = <Line>(lines: readonly Line[]) => lines.filter((_, index) => isBroad !== (index % 3 === 0));

describe.each(Object.entries({ ...variants, ...moreVariants }))("%s", (_, lines) => {
  test.each(judged(lines))("%j is judged %s", async (command, expected, rules) => {
    expect(accepted[expected]).toContain(await outcome("bash", { command }, fromConfig(rules, "/home/u")));
  });
});

describe.each(Object.entries(otherTools))("%s", (_, calls) => {
  test.each(calls)("%s %j is judged %s", async (tool, input, expected, rules) => {
    expect(accepted[expected]).toContain(await outcome(tool, input, fromConfig(rules, "/home/u")));
  });
});
