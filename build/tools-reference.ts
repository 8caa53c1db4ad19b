/** `npm run generate`: writes docs/tools-reference.md from the declarations of the built-in tools. */

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { declaredTools } from "../src/compose/built-in-tools.ts";
import { readLimits } from "../src/config/schema.ts";
import { questionPermission } from "../src/core/ask.ts";
import { builtInAgents } from "../src/policy/agents.ts";
import { isListed, permissionsOf } from "../src/policy/known-permissions.ts";
import { createLayers, defaultRules } from "../src/policy/layers.ts";
import { createPolicy } from "../src/policy/policy.ts";
import { actions, type Rule } from "../src/policy/rules.ts";
import { wildcard } from "../src/policy/wildcard.ts";
import { boundTool } from "../src/tool/define-tool.ts";
import type { Tool } from "../src/tool/tool.ts";
import { searchTools } from "../src/tools/index.ts";
import { createInvalid } from "../src/tools/invalid.ts";

const layersFor = createLayers({ config: [], agents: new Map() });
const policy = createPolicy({ guard: { dataDirectory: "/data" }, home: "" });
const limits = readLimits();

/** Returns the page for these tools. */
function toolsReference(tools: readonly Tool[]): string {
  const sorted = [...tools].sort((a, b) => (a.name < b.name ? -1 : 1));
  const listed = new Map<string, string>();
  return `${[
    "# Built-in tools: reference",
    "<!-- Written by `npm run generate` from the declarations in src/tools. Do not edit this page. -->",
    [
      "Without configuration. [Tools](tools.md#built-in-tools) says what they promise, [Policy](policy.md) and [Configuration](configuration.md) how to change",
      "what is allowed, and limits.",
    ].join("\n"),
    [
      `A run takes at most ${count(limits.timeoutMs)} ms, or what the tool or \`timeout_ms\` of the call says, up to`,
      `${count(limits.maxTimeoutMs)} ms. The input of a call has at most ${count(limits.inputBytes)} bytes, its stored output ${count(limits.outputBytes)} bytes. Of an`,
      `output models see the beginning, at most ${count(defaultKeep.lines)} lines and ${count(defaultKeep.bytes)} bytes, and how to read the rest, unless the tool names`,
      "another part. Parameters in bold are required, those without a type are strings. Rules ask by default about what a tool asks, and the agents `build`, `plan` and `explore` see it,",
      "unless it says otherwise. An idempotent tool may run again after a crash; an open world is one outside the workspace.",
    ].join("\n"),
    ...sorted.map((tool) => sectionOf(tool, listed)),
  ].join("\n\n")}\n`;
}

/** Describes a tool. A parameter that an earlier tool lists in the same words is named only; `listed` has the tools of those. */
function sectionOf(tool: Tool, listed: Map<string, string>): string {
  const { name, definition } = tool;
  const facts = [
    `Asks ${asksOf(tool)}`,
    ...agentsOf(tool),
    ...hintsOf(tool),
    ...keepOf(tool),
    ...offersOf(tool).map((text) => `offered ${text}`),
  ];
  const lines = parametersOf(definition.inputSchema ?? {}).map(lineOf);
  const elsewhere = Map.groupBy(
    lines.filter((line) => listed.has(line)),
    (line) => listed.get(line),
  );
  const parameters = [
    ...lines.filter((line) => !listed.has(line)),
    ...[...elsewhere].map(([other, same]) => `* as for [${other}](#${other}): ${same.map(nameIn).join(", ")}`),
  ];
  for (const line of lines) if (!listed.has(line)) listed.set(line, name);
  const texts = [plain(definition.description), parameters.join("\n"), `${facts.join("; ")}.`];
  return [`## ${name}`, ...texts.filter((text) => text !== "")].join("\n\n");
}

const nameIn = (line: string) => line.slice(2, line.indexOf(":"));

/** Returns a parameter as an entry of a list: name, type, default, limits, meaning. */
function lineOf([path, ...rest]: Row): string {
  const meaning = rest.pop();
  const facts = rest.filter((text) => text !== "" && text !== "string").join(", ");
  return `* ${path}: ${[facts, oneLine(meaning ?? "")].filter((text) => text !== "").join(". ")}`.trimEnd();
}

/** Lists the permissions of a tool, each with the built-in rules about it. */
function asksOf(tool: Tool): string {
  const permissions = permissionsOf(tool);
  if (permissions.length === 0) return "nothing";
  return permissions
    .map((permission) =>
      [code(permission), ...[defaultsOf(permission)].filter((text) => text !== asks).map((text) => `(${text})`)].join(
        " ",
      ),
    )
    .join(", ");
}

/** The default of a permission that no rule names. */
const asks = "asks";

function defaultsOf(permission: string): string {
  if (permission === questionPermission) return "a person answers, whatever rules allow";
  const rules = defaultRules.filter((rule) => wildcard(permission, rule.permission));
  const first = rules.some(({ pattern }) => pattern === "*") ? [] : [asks];
  return [...first, ...rules.map(ruleText)].join("; ");
}

function ruleText({ pattern, action }: Rule): string {
  const verb = verbs.get(action) ?? "";
  return pattern === "*" ? verb : `${code(pattern)} ${verb}`;
}

const verbs = new Map<Rule["action"], string>([
  [actions.allow, "allowed"],
  [actions.ask, asks],
  [actions.deny, "denied"],
]);

/** Names the built-in agents that see a tool, unless all do. */
function agentsOf(tool: Tool): string[] {
  const sees = (agent: string) => {
    const layers = layersFor({ session: undefined, ancestors: [], agent });
    return isListed(tool, (permission) => policy.hides(layers, permission));
  };
  const agents = [...builtInAgents.keys()].filter(sees);
  if (agents.length === builtInAgents.size) return [];
  return [agents.length === 0 ? "no agent" : `agents ${agents.map(code).join(", ")}`];
}

function hintsOf({ definition: { annotations } }: Tool): string[] {
  return [
    annotations?.readOnly && "read-only",
    annotations?.idempotent && "idempotent",
    annotations?.destructive && "destructive",
    annotations?.openWorld && "open world",
  ].filter((hint) => typeof hint === "string");
}

function keepOf({ keep: { end, lines, bytes } }: Tool): string[] {
  if (end === defaultKeep.end && lines === defaultKeep.lines && bytes === defaultKeep.bytes) return [];
  const part = { head: "the beginning", tail: "the end", both: "beginning and end" }[end];
  return [`output ${part}, at most ${count(lines)} lines and ${count(bytes)} bytes`];
}

function offersOf({ name, changeForm, providers, experimental }: Tool): string[] {
  return [
    ...(changeForm === "patch" ? ["to models that are trained to write patches"] : []),
    ...(changeForm === "replace" ? ["to models that are not trained to write patches"] : []),
    ...(providers ? [`to models of ${providers.map(code).join(", ")}`] : []),
    ...(needProvider.includes(name) ? [`only if \`provider\` in [${name}] of \`toolgate.toml\` names a provider`] : []),
    ...(experimental ? ["only if `experimental` in `toolgate.toml` names it"] : []),
  ];
}

/** The part of an output that models see of most tools, as `defineTool` sets it. */
const defaultKeep = { end: "head", lines: 2_000, bytes: 51_200 };
const needProvider = Object.keys(searchTools({ websearch: undefined, codesearch: undefined }));

type Row = [path: string, type: string, standard: string, limits: string, meaning: string];

/** Returns a row for each property of an object schema, and for those inside it: `todos`, `todos[].content`. */
function parametersOf(schema: JsonObject, prefix = ""): Row[] {
  const { properties, required = [] } = schema;
  if (!isObject(properties)) return [];
  return Object.entries(properties).flatMap(([name, value]) => {
    if (!isObject(value)) return [];
    const isRequired = Array.isArray(required) && required.includes(name) && value.default === undefined;
    const standard = value.default === undefined ? "" : `default ${code(JSON.stringify(value.default))}`;
    const meaning = typeof value.description === "string" ? plain(value.description) : "";
    const path = `${prefix}${name}`;
    const shown = isRequired ? `**${code(path)}**` : code(path);
    return [[shown, typeOf(value), standard, limitsOf(value), meaning], ...nestedIn(value, path)];
  });
}

function nestedIn(schema: JsonObject, path: string): Row[] {
  const { items } = schema;
  if (isObject(items)) return nestedIn(items, `${path}[]`);
  return [...parametersOf(schema, `${path}.`), ...variantsOf(schema).flatMap((variant) => nestedIn(variant, path))];
}

function typeOf(schema: JsonObject): string {
  const { type, items } = schema;
  if (Array.isArray(schema.enum)) return schema.enum.map((value) => code(JSON.stringify(value))).join(", ");
  if (schema.const !== undefined) return code(JSON.stringify(schema.const));
  const variants = variantsOf(schema);
  if (variants.length > 0) return [...new Set(variants.map(typeOf))].join(" or ");
  if (type === "array") return isObject(items) ? `list of ${typeOf(items)}` : "list";
  if (Array.isArray(type)) return type.map(String).join(" or ");
  return typeof type === "string" ? type : "any";
}

function variantsOf({ anyOf, oneOf }: JsonObject): JsonObject[] {
  return [anyOf, oneOf].flatMap((list) => (Array.isArray(list) ? list.filter(isObject) : []));
}

const limitWords: Readonly<Record<string, (value: string) => string>> = {
  minimum: (value) => `≥ ${value}`,
  exclusiveMinimum: (value) => `> ${value}`,
  maximum: (value) => `≤ ${value}`,
  exclusiveMaximum: (value) => `< ${value}`,
  minLength: (value) => (value === "1" ? "" : `≥ ${value} characters`),
  maxLength: (value) => `≤ ${value} characters`,
  minItems: (value) => (value === "1" ? "" : `≥ ${value} entries`),
  maxItems: (value) => `≤ ${value} entries`,
};

/** Names the limits of a value, without those that any safe integer has. */
function limitsOf(schema: JsonObject): string {
  const { minimum, maximum } = schema;
  if (typeof minimum === "number" && typeof maximum === "number" && maximum < Number.MAX_SAFE_INTEGER)
    return `${count(minimum)}–${count(maximum)}`;
  const own = Object.entries(limitWords).flatMap(([key, word]) => {
    const value = schema[key];
    return typeof value === "number" && Math.abs(value) < Number.MAX_SAFE_INTEGER ? [word(count(value))] : [];
  });
  return [...own, ...variantsOf(schema).map(limitsOf)].filter((text) => text !== "").join(", ");
}

const isObject = (value: JsonValue | undefined): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const count = (value: number) => value.toLocaleString("en-US");
const code = (text: string) => (text.includes("`") ? `\`\` ${text} \`\`` : `\`${text}\``);
/** Keeps text of a description from being read as markup. */
const plain = (text: string) =>
  text
    .split("`")
    .map((part, i) => (i % 2 === 0 ? part.replaceAll("<", "&lt;").replaceAll("*", "\\*") : part))
    .join("`");
const oneLine = (text: string) => text.replaceAll("\n", " ");

const tools = [...(await declaredTools()), boundTool(createInvalid({ namesIn: () => [] }))];
writeFileSync(join(import.meta.dirname, "../docs/tools-reference.md"), toolsReference(tools));
