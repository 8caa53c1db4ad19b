import { existsSync, readFileSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import * as z from "zod";
import { PermissionLayer as Layer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { actions, type Rule } from "../../src/policy/rules.ts";
import { connect } from "../e2e/clients.ts";
import { createService } from "../e2e/service.ts";

const action = z.enum(["allow", "ask", "deny"]);
const rules = z.array(z.object({ permission: z.string(), pattern: z.string(), action }));
const written = z.union([action, z.record(z.string(), z.union([action, z.record(z.string(), action)]))]);
const known = z.discriminatedUnion("kind", [
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
    input: z.object({ config: written, home: z.string() }),
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
  z.object({
    kind: z.literal("arity"),
    name: z.string(),
    input: z.object({ tokens: z.array(z.string()) }),
    expect: z.array(z.string()),
  }),
]);

type Known<Kind> = Extract<z.infer<typeof known>, { kind: Kind }>;

const here = new URL("./cases.json", import.meta.url);
const shared = new URL("../../../shared/cases/permission.json", import.meta.url);
const all = [here, shared]
  .filter((file) => existsSync(file))
  .flatMap((file) => z.array(known).parse(JSON.parse(readFileSync(file, "utf8"))));
const cases = [...new Map(all.map((one) => [one.name, one])).values()];
const only = <Kind extends z.infer<typeof known>["kind"]>(kind: Kind): Known<Kind>[] =>
  cases.filter((one): one is Known<Kind> => one.kind === kind);

const toRules = (list: z.infer<typeof rules>): Rule[] =>
  list.map((rule) => ({ ...rule, action: actions[rule.action] }));
const nameOf = new Map<unknown, string>(Object.entries(actions).map(([name, action]) => [action, name]));

/** Configurations of agents, each a table in toolgate.toml. */
const agents = new Map<string, string>();
function agentFor(name: string, config: z.infer<typeof written>): string {
  const agent = `case-${agents.size}`;
  const lines = Object.entries(typeof config === "string" ? { "*": config } : config).map(([permission, value]) => {
    const patterns = typeof value === "string" ? JSON.stringify(value) : inline(value);
    return `${JSON.stringify(permission)} = ${patterns}`;
  });
  agents.set(name, agent);
  return `[agent.${agent}.permission]\n${lines.join("\n")}\n`;
}
const inline = (patterns: Record<string, string>) =>
  `{ ${Object.entries(patterns)
    .map((pair) => pair.map((text) => JSON.stringify(text)).join(" = "))
    .join(", ")} }`;
const asConfig = (ruleset: z.infer<typeof rules>) =>
  Object.fromEntries(
    [...Map.groupBy(ruleset, ({ permission }) => permission)].map(([permission, group]) => [
      permission,
      Object.fromEntries(group.map(({ pattern, action }) => [pattern, action] as const)),
    ]),
  );

const service = createService({
  settings: [
    'experimental = ["multiedit"]',
    ...only("fromConfig").map(({ name, input }) => agentFor(name, input.config)),
    ...only("disabled").map(({ name, input }) => agentFor(name, asConfig(input.ruleset))),
  ].join("\n"),
});
const home = () => dirname(service.config);

beforeAll(async () => {
  await service.start();
  await mkdir(join(home(), "tool"));
  await writeFile(
    join(home(), "tool/mcp_a.ts"),
    'export default { description: "One of the user\'s.", args: {}, execute: async () => "" };\n',
  );
});
afterAll(service.close);

async function explain(permission: string, patterns: string[], rules: Rule[]) {
  const question = { permission, patterns, rules, onlyRules: true };
  return await connect(service, "caller").permissions.explainPermission(question);
}

/** Cases that Toolgate decides differently from opencode. */
const otherwise: ReadonlyMap<string, unknown> = new Map<string, unknown>([
  // Commands and addresses keep their case: the service runs on POSIX, and a rule for `rm` is not about `RM` there.
  ["test: wildcard - matching is case-insensitive on Windows (lower-case text)", false],
  ["derived: wildcard - upper-case command is matched by a lower-case rule on Windows", false],
  // Wrappers and interpreters get no prefix offer: it would cover whatever they run.
  ["derived: arity - npx is not in the table", []],
  ["derived: arity - python3 is not in the table", []],
  ["derived: arity - sudo is not in the table, so the wrapped command is lost", []],
  // A prefix offer covers no effect that the approved command lacks: not all of an unknown program, other sub-commands, or
  // other code.
  ["test: arity - unknown command keeps only the first token", []],
  ["derived: arity - prefix lookup is case-sensitive", []],
  ["derived: arity - npm run without a script", []],
  ["derived: arity - npm install", []],
  ["derived: arity - bun install", []],
  ["test: arity - longest prefix wins: docker compose", []],
  ["test: arity - docker has arity 2", []],
  // Nor is it offered where operands say what changes, what runs, or with which arguments.
  ["derived: arity - bun run", []],
  ["derived: arity - cargo run", []],
  ["derived: arity - kubectl rollout", []],
  ["test: arity - exact length git", []],
  ["test: arity - npm run has arity 3", []],
  ["derived: arity - kubectl get", ["kubectl", "get", "pods"]],
]);
const expected = (one: z.infer<typeof known>) => (otherwise.has(one.name) ? otherwise.get(one.name) : one.expect);

describe("through ExplainPermission", () => {
  test.each(only("wildcard"))("$name", async (one) => {
    const { text, pattern } = one.input;
    // The backslash rule applies to paths only. Command lines are analysed; see bypass.test.ts.
    const permission = /\\/.test(text + pattern) ? "glob" : "text";
    const rules = [{ permission, pattern, action: actions.allow }];
    expect((await explain(permission, [text], rules)).action === actions.allow).toBe(expected(one));
  });

  test.each(only("evaluate"))("$name", async (one) => {
    const { permission, pattern, rulesets } = one.input;
    // The other decisions are about directories outside the workspace, and files that a command changes.
    const { decisions } = await explain(permission, [pattern], rulesets.flatMap(toRules));
    expect(nameOf.get(decisions[0]?.action)).toBe(expected(one));
  });

  test.each(only("merge"))("$name: each rule is met in its place", async (one) => {
    const wanted = toRules(one.expect);
    const rules = one.input.rulesets.flatMap(toRules);
    for (const [index, { permission, pattern }] of wanted.entries()) {
      const { decisions } = await explain(permission, [pattern.replaceAll("*", "x")], rules);
      const met = decisions[0]?.matches.find(({ ruleIndex }) => ruleIndex === index);
      expect(met?.rule).toMatchObject(wanted[index] ?? {});
    }
    expect(rules).toHaveLength(wanted.length);
  });

  test.each(only("fromConfig"))("$name: the configuration has each rule in its place", async (one) => {
    const agent = agents.get(one.name) ?? "";
    for (const [index, { permission, pattern, action }] of one.expect.entries()) {
      const placed = pattern.replace(one.input.home, home());
      const { decisions } = await connect(service, "caller").permissions.explainPermission({
        agent,
        permission: permission.replaceAll("*", "x"),
        patterns: [placed.replaceAll("*", "x")],
      });
      const matches = decisions[0]?.matches.filter(({ layer }) => layer === Layer.AGENT) ?? [];
      expect(matches.find(({ ruleIndex }) => ruleIndex === index)?.rule).toMatchObject({
        permission,
        pattern: placed,
        action: actions[action],
      });
      expect(Math.max(...matches.map(({ ruleIndex }) => ruleIndex))).toBeLessThan(one.expect.length);
    }
  });
});

test.each(only("disabled"))("through ListTools: $name", async (one) => {
  const agent = agents.get(one.name) ?? "";
  const { tools } = connect(service, "caller");
  // No model is offered both tools that change files.
  const lists = await Promise.all(["", "gpt-5"].map((modelId) => tools.listTools({ agent, modelId })));
  const offered = lists.flatMap((list) => list.tools.map(({ name }) => name));
  expect(one.input.tools.filter((tool) => !offered.includes(tool)).toSorted()).toEqual(expected(one));
});

test.each(only("arity"))("through PlanTool: $name", async (one) => {
  const { tools } = connect(service, "caller");
  const input = { command: one.input.tokens.join(" ") };
  const plan = await tools.planTool({ tool: "bash", input }).catch(() => undefined);
  const offers = plan?.asks.flatMap((ask) => (ask.permission === "bash" ? ask.offers : [])) ?? [];
  const [prefix] = offers.flatMap(({ match }) => (match?.match.case === "prefix" ? [match.match.value.words] : []));
  expect(prefix ?? []).toEqual(expected(one));
});
