import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { isObject } from "../core/json.ts";
import { type InputUse, pathText, readCondition, usesInput } from "./condition.ts";
import { type AskingTool, permissionsOf } from "./known-permissions.ts";
import type { Rule } from "./rules.ts";
import { isLiteral } from "./wildcard.ts";

/** A tool by what it can ask and the JSON Schema of its input. */
export interface TypedTool extends AskingTool {
  readonly definition: { readonly inputSchema?: JsonObject | undefined };
}

/**
 * Describes what the condition of a rule uses of the input and no tool has that asks for the rule's permission; undefined if there
 * is nothing. Such a field is never known, so the rule never allows, and always asks or denies.
 */
export function inputProblem(
  { permission, pattern, when = "" }: Rule,
  tools: readonly TypedTool[],
): string | undefined {
  if (!usesInput(when) || !isLiteral(permission)) return undefined;
  const { inputs } = readCondition(when);
  const asking = tools.filter((tool) => permissionsOf(tool).includes(permission));
  const problems = asking.map((tool) => ({ tool, problem: firstProblem(inputs, tool) }));
  if (problems.some(({ problem }) => problem === undefined)) return undefined;
  const [first] = problems;
  return (
    first &&
    `the condition of ${permission} ${JSON.stringify(pattern)} does not fit the input of ${first.tool.name}: ${first.problem}; correct it, or name the tool's field`
  );
}

/** Checks if a rule allows by kinds of risk without containment. */
export function restsOnRisk({ action, when = "" }: Rule): boolean {
  if (action !== PermissionAction.ALLOW || when === "") return false;
  const { names } = readCondition(when);
  return names.has("risk") && !names.has("contained");
}

function firstProblem(
  inputs: readonly InputUse[],
  { definition: { inputSchema = {} } }: TypedTool,
): string | undefined {
  for (const { path, type } of inputs) {
    const found = schemasAt(inputSchema, path);
    if (found.length === 0) return `it has no ${pathText(path)}`;
    const types = found.map(typesOf);
    if (type && types.every((some) => some && !some.includes(type)))
      return `${pathText(path)} is ${[...new Set(types.flat())].join(" or ")}, and is compared as ${type}`;
  }
  return undefined;
}

/** Returns the schemas that may describe a field; empty if there is no such field. */
function schemasAt(root: JsonObject, path: InputUse["path"]): JsonObject[] {
  const budget = { left: maxParts };
  let found = branches(root, root, budget);
  for (const key of path)
    found = found.flatMap((schema) => below(schema, key)).flatMap((each) => branches(each, root, budget));
  return found;
}

function below(schema: JsonObject, key: string | number): JsonValue[] {
  if (typeof key === "number") {
    const { prefixItems, items = {} } = schema;
    const own = Array.isArray(prefixItems) ? prefixItems[key] : undefined;
    return own === undefined ? [items] : [own];
  }
  const { properties, additionalProperties, patternProperties } = schema;
  const named = isObject(properties) ? properties : {};
  const own = Object.hasOwn(named, key) ? named[key] : undefined;
  if (own !== undefined) return [own];
  if (isObject(patternProperties) || (properties === undefined && additionalProperties === undefined)) return [{}];
  return isObject(additionalProperties) || additionalProperties === true ? [additionalProperties] : [];
}

/** Resolves references in the schema, and lists its alternatives; one that is not found, or over the budget, may be anything. */
function branches(schema: JsonValue | undefined, root: JsonObject, budget: { left: number }): JsonObject[] {
  if (schema === false) return [];
  budget.left -= 1;
  if (!isObject(schema) || budget.left < 0) return [{}];
  const { $ref: reference } = schema;
  if (typeof reference === "string") return branches(referred(reference, root), root, budget);
  const parts = ["anyOf", "oneOf", "allOf"].flatMap((key) => {
    const listed = schema[key];
    return Array.isArray(listed) ? listed : [];
  });
  if (parts.length === 0) return [schema];
  const isWhole = schema.properties !== undefined;
  return [...(isWhole ? [schema] : []), ...parts.flatMap((part) => branches(part, root, budget))];
}

const maxParts = 1_000;

function referred(reference: string, root: JsonObject): JsonValue | undefined {
  if (!reference.startsWith("#/")) return undefined;
  let found: JsonValue | undefined = root;
  for (const key of reference.slice(2).split("/"))
    found = isObject(found) && Object.hasOwn(found, key) ? found[key] : undefined;
  return found;
}

/** Returns the JSON types that a schema allows, as conditions name them; undefined if any. */
function typesOf({ type, enum: values, const: value }: JsonObject): string[] | undefined {
  const named = Array.isArray(type) ? type : [type];
  if (named.every((each) => typeof each === "string"))
    return named.map((each) => (each === "integer" ? "number" : each));
  const literals = Array.isArray(values) ? values : value === undefined ? [] : [value];
  return literals.length === 0 ? undefined : [...new Set(literals.map((each) => typeof each))];
}
