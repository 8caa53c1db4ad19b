import { relative, resolve } from "node:path";
import { closest } from "fastest-levenshtein";
import { type PermissionDecision, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { readIfExists } from "../core/read-files.ts";
import { builtInAgents } from "../policy/agents.ts";
import { inputProblem, restsOnRisk, type TypedTool } from "../policy/condition-schema.ts";
import { type AskingTool, isForeignPermission, knownPermissions, permissionsOf } from "../policy/known-permissions.ts";
import { type ConfiguredRules, containedPreset, createLayers, type Preset } from "../policy/layers.ts";
import { strictestOf } from "../policy/opinion.ts";
import { parseRules, rulePaths } from "../policy/parse-rules.ts";
import { createPolicy } from "../policy/policy.ts";
import { ruleCovers } from "../policy/rule-cover.ts";
import { actions, expandHome, type Rule } from "../policy/rules.ts";
import { isLiteral } from "../policy/wildcard.ts";
import type { WrittenApprovals } from "./approval.ts";
import { checkToml } from "./keys.ts";
import { canonicalPath, checkOutside } from "./paths.ts";
import { candidateSchema, type PolicySettings, type Settings } from "./schema.ts";
import { ConfigError, readToml, type Toml } from "./toml.ts";

/** A list of rules, with the lines on which they are written. */
export interface WrittenRules {
  readonly rules: readonly Rule[];
  /** Returns the line on which a rule is written. */
  lineOf(index: number): number | undefined;
}

/** An agent, with the rules that the configuration adds to it. */
export interface Agent extends WrittenRules {
  readonly description: string;
}

/** A decision that the rules must lead to; otherwise the service does not start. */
export type RuleTest = Settings["permission_test"][number] & { readonly line: number | undefined };

/** The permission settings of a configuration. */
export interface WrittenPolicy {
  readonly preset: Preset | undefined;
  readonly config: WrittenRules;
  /** The built-in agents, then the others as configured. */
  readonly agents: ReadonlyMap<string, Agent>;
  readonly tests: readonly RuleTest[];
  /** The entries of `[[approval]]`; absent in policies that are not those of a service. */
  readonly approvals?: WrittenApprovals | undefined;
}

/** Reads the rules, agents and tests of the settings. */
export function readPolicy(
  {
    permission,
    agent,
    permission_test = [],
    preset,
  }: PolicySettings & Partial<Pick<Settings, "permission_test" | "preset">>,
  lineOf: Toml["lineOf"],
  home: string,
): WrittenPolicy {
  const written = (table: unknown, path: readonly string[]): WrittenRules => {
    const paths = rulePaths(table ?? {});
    return {
      rules: parseRules(table ?? {}, path.join("."), home),
      lineOf: (index) => lineOf([...path, ...(paths[index] ?? [])]),
    };
  };
  const agents = new Map<string, Agent>();
  for (const name of new Set([...builtInAgents.keys(), ...Object.keys(agent)])) {
    const own = agent[name];
    agents.set(name, {
      description: own?.description ?? builtInAgents.get(name)?.description ?? "",
      ...written(own?.permission, ["agent", name, "permission"]),
    });
  }
  return {
    preset: preset?.name && containedPreset(preset.registries),
    config: written(permission, ["permission"]),
    agents,
    tests: permission_test.map((test, i) => ({ ...test, line: lineOf(["permission_test", i]) })),
  };
}

/** Returns the line of a rule by its layer, its agent and its index there; undefined if no line of the configuration has it. */
export function ruleLine(
  { config, agents }: WrittenPolicy,
  layer: PermissionLayer,
  agent: string,
  index: number,
): number | undefined {
  if (layer === PermissionLayer.CONFIG) return config.lineOf(index);
  if (layer === PermissionLayer.AGENT) return agents.get(agent)?.lineOf(index);
  if (layer !== PermissionLayer.AGENT_LIMITS && layer !== PermissionLayer.INHERITED) return undefined;
  // The configured rules of an agent follow its built-in limits.
  const own = index - (builtInAgents.get(agent)?.limits.length ?? 0);
  return own < 0 ? undefined : agents.get(agent)?.lineOf(own);
}

/** Reduces a configured policy to the rules from which layers are built. */
export function configuredRules({ preset, config, agents, approvals }: WrittenPolicy): ConfiguredRules {
  const byAgent = new Map([...agents].map(([name, { rules }]) => [name, rules]));
  return { preset, config: config.rules, agents: byAgent, ...(approvals && { approvals }) };
}

/** Reads a policy that is tried: the tables of the rules alone. Throws `ConfigError`. */
export function readCandidate(text: string, source: string, home: string): ConfiguredRules {
  const { value, lineOf } = checkToml(candidateSchema, text, source);
  return configuredRules(readPolicy(value, lineOf, home));
}

/** Reduces a configuration to the tables of its rules, as TOML in their order: nothing else, such as a token, leaves this machine. */
export function candidateOf(text: string, source: string, home: string): string {
  const tablesOf = (value: unknown) =>
    Object.fromEntries(Object.entries(Object(value)).filter(([name]) => Object.hasOwn(candidateSchema.shape, name)));
  const { value, lineOf } = checkToml(candidateSchema, text, source, tablesOf);
  readPolicy(value, lineOf, home);
  const tables = Object.entries(tablesOf(readToml(text, source).value));
  if (tables.length === 0) throw new ConfigError(`${source} has no rules; write them below [permission]`);
  return tables.map(([name, table]) => `${name} = ${inlineToml(table)}\n`).join("");
}

/** Rules that are judged beside those in force. */
export interface ShadowSettings {
  /** Canonical. */
  readonly file: string;
  readonly rules: ConfiguredRules;
}

const maxShadowBytes = 262_144;

/** Reads the rules of a configuration, or of a file of rules alone, that are tried. Throws `ConfigError`. */
export function readShadow(named: string, home: string, workspaces: ReadonlyMap<string, string>): ShadowSettings {
  const file = canonicalPath(named);
  checkOutside(file, "the file of shadow rules", workspaces);
  const text = readIfExists(file);
  if (text === undefined) throw new ConfigError(`shadow.file ${file} does not exist; create it, or leave the key out`);
  if (Buffer.byteLength(text) > maxShadowBytes)
    throw new ConfigError(`shadow.file ${file} has over ${maxShadowBytes} bytes; make it smaller`);
  return { file, rules: readCandidate(candidateOf(text, file, home), file, home) };
}

/** Writes a value on one line. A table that is not, TOML would not keep in the order of its keys. */
function inlineToml(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(inlineToml).join(", ")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const entries = Object.entries(value).map(([key, each]) => `${JSON.stringify(key)} = ${inlineToml(each)}`);
  return `{ ${entries.join(", ")} }`;
}

/** A problem of a policy: an error prevents the start of the service, a warning does not. */
export interface Finding {
  severity: "error" | "warning";
  /** The line number, from 1; undefined if unknown. */
  line: number | undefined;
  message: string;
}

/** Runs the tests of a policy, and finds unknown permissions and rules that never decide. Returns the findings in order of lines. */
export async function checkPolicy(
  policy: WrittenPolicy,
  given: { home: string; dataDirectory: string; tools: readonly TypedTool[] },
): Promise<Finding[]> {
  const lists = [policy.config, ...policy.agents.values()];
  const judge = createJudge(policy, given);
  const failures: Finding[] = [];
  for (const test of policy.tests) failures.push(...(await runTest(test, policy, judge)));
  const found = [
    ...lists.flatMap((list) => [
      ...unknownNames(list, given.tools),
      ...neverDecides(list, given.home),
      ...conditionProblems(list, given.tools),
    ]),
    ...failures,
    ...(policy.approvals?.warnings ?? []),
  ];
  return found.toSorted((one, other) => (one.line ?? 0) - (other.line ?? 0));
}

type Judge = (test: RuleTest) => Promise<PermissionDecision | undefined>;

async function runTest(test: RuleTest, policy: WrittenPolicy, judge: Judge): Promise<Finding[]> {
  const { permission, pattern, expect, agent = "build", line } = test;
  const { agents } = policy;
  const what = `permission test: ${askOf(test)} for agent ${agent}`;
  if (!agents.has(agent)) {
    const message = `${what}: unknown agent, the nearest known one is "${closest(agent, [...agents.keys()])}"`;
    return [{ severity: "error", line, message }];
  }
  const decided = await judge(test);
  if (!decided || decided.action === actions[expect]) return [];
  const action = Object.entries(actions).find(([, value]) => value === decided.action)?.[0];
  const at = ruleLine(policy, decided.layer, agent, decided.ruleIndex ?? 0);
  const part = decided.permission === permission && decided.pattern === pattern ? "" : ` ${askOf(decided)}:`;
  const message = `${what}: expected ${expect}, but it is ${action}:${part} ${decided.reason}${at === undefined ? "" : `, on line ${at}`}`;
  return [{ severity: "error", line, message }];
}

const askOf = ({ permission, pattern }: Pick<Rule, "permission" | "pattern">) =>
  `${permission} ${JSON.stringify(pattern)}`;

/** Creates the judge of tests. It judges as for a call without a session in an empty workspace. */
function createJudge(policy: WrittenPolicy, { home, dataDirectory }: { home: string; dataDirectory: string }): Judge {
  const engine = createPolicy({ guard: { dataDirectory }, home });
  const layersFor = createLayers(configuredRules(policy));
  const workspace = "/workspace";
  const place = (path: string, cwd: string) => {
    const absolute = resolve(cwd, expandHome(path, home));
    const external = absolute !== workspace && !absolute.startsWith(`${workspace}/`);
    return {
      absolute,
      pattern: external ? absolute : relative(workspace, absolute) || ".",
      external,
      isDirectory: false,
    };
  };
  return async ({ permission, pattern, agent = "build", contained, tool = "", input }) => {
    const ask = {
      permission,
      patterns: [pattern],
      ...((tool !== "" || input) && { call: { ...(tool !== "" && { tool }), ...(input && { input }) } }),
      ...(permission === "bash" ? { cwd: workspace } : { paths: [place(pattern, workspace).absolute] }),
    };
    const layers = layersFor({ session: undefined, ancestors: [], agent });
    const expanded = await engine.expand(ask, layers, {
      resolve: async (path, cwd) => place(path, cwd),
      list: async () => [],
    });
    const held = contained === undefined ? {} : { contained: contained || "is not contained, as the test says" };
    return strictestOf(expanded.flatMap((each) => engine.judge({ ...each, ...held }, layers)));
  };
}

function unknownNames({ rules, lineOf }: WrittenRules, tools: readonly AskingTool[]): Finding[] {
  const known = knownPermissions(tools);
  return rules.flatMap(({ permission }, i): Finding[] => {
    if (!isLiteral(permission) || known.includes(permission) || isForeignPermission(permission)) return [];
    const tool = tools.find(({ name }) => name === permission);
    const [meant] = tool ? permissionsOf(tool) : [];
    const hint =
      meant === undefined
        ? `the nearest known one is "${closest(permission, known)}"; those of tool files, MCP servers and workers are not known here`
        : `the tool of that name asks for "${meant}"`;
    const message = `unknown permission "${permission}": ${hint}`;
    return [{ severity: "warning", line: lineOf(i), message }];
  });
}

/** Finds conditions on fields that the tools do not have, and allows that rest on words of a line alone. */
function conditionProblems({ rules, lineOf }: WrittenRules, tools: readonly TypedTool[]): Finding[] {
  return rules.flatMap((rule, i): Finding[] => {
    const [problem, line] = [inputProblem(rule, tools), lineOf(i)];
    const found: Finding[] = problem === undefined ? [] : [{ severity: "error", line, message: problem }];
    if (!restsOnRisk(rule)) return found;
    const message = `${askOf(rule)} allows by risk alone, and a risk that is not found proves nothing; write contained && … as well`;
    return [...found, { severity: "warning", line, message }];
  });
}

function neverDecides({ rules, lineOf }: WrittenRules, home: string): Finding[] {
  return rules.flatMap((rule, i): Finding[] => {
    const later = rules.findLastIndex((other, place) => place > i && ruleCovers(other, rule, home));
    const winner = rules[later];
    if (!winner) return [];
    const [named, by] = [askOf(rule), askOf(winner)];
    const place = lineOf(later);
    const where = place === undefined ? "" : ` on line ${place}`;
    const message = `the rule ${named} never decides: the later rule ${by}${where} matches everything that it matches, and the last match wins; move it down, or remove it`;
    return [{ severity: "warning", line: lineOf(i), message }];
  });
}
