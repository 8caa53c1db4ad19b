import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { isObject } from "../core/json.ts";
import { bindTool, boundTool } from "./define-tool.ts";
import type { DefinedTool, Tool } from "./tool.ts";

/** Tools to register: each serves under its key. */
export type ToolsByName = Readonly<Record<string, DefinedTool>>;

/** Returns tools by the names that they declare. */
export function byName(tools: readonly DefinedTool[]): ToolsByName {
  return Object.fromEntries(tools.map((tool) => [boundTool(tool).name, tool]));
}

/** Tools by name: those of the whole process, and those of one workspace, which take precedence there. */
export interface Registry {
  /**
   * Adds tools by name, for one workspace root or for all, and returns the function that removes exactly this registration. Of
   * several tools with one name that of the highest rank serves, of those the latest. A negative rank never takes the place of a
   * tool that serves everywhere. Throws if one of them is not a tool, or
   * not one of this name.
   */
  register(tools: ToolsByName, workspace?: string, rank?: number): () => void;
  /** Returns the tool that serves under a name in a workspace root. A call keeps it, whatever is registered or removed later. */
  get(name: string, workspace: string): Tool | undefined;
  /** Reports whether a tool serves under a name in any workspace. */
  knows(name: string): boolean;
  /** Tools that serve in any workspace root, sorted by name. */
  all(): Tool[];
  /** Tools that serve in a workspace root, sorted by name. */
  list(workspace: string): Tool[];
  /** Number of changes of the registered tools. */
  revision(): number;
  /** Reports whether a definition is among the last 10,000 that were registered here. */
  wasRegistered(definitionId: string): boolean;
  /** Adds a provider, which is refreshed before a tool is resolved. */
  addProvider(provider: ToolProvider): void;
  /** Lets the providers register what has changed. */
  refresh(workspace: string): Promise<void>;
  /** The reason of a provider to deny all calls in a workspace root. */
  guardProblem(workspace: string): string | undefined;
}

/** A source of tools that may change by itself, such as files. */
export interface ToolProvider {
  /** Registers the tools of a workspace root as they are now. */
  refresh(workspace: string): Promise<void>;
  /** The reason to deny all calls in a workspace root; undefined if there is none. */
  guardProblem(workspace: string): string | undefined;
}

/** Creates an empty registry. It ignores experimental tools that are not named. `registered` is called with the tools of each registration. */
export function createRegistry(
  { experimental = [] }: { experimental?: readonly string[] } = {},
  registered: (tools: readonly Tool[]) => void = () => {},
): Registry {
  const everywhere: Layer = new Map();
  const workspaces = new Map<string, Layer>();
  const providers: ToolProvider[] = [];
  const definitions = new Set<string>();
  let revision = 0;

  function layerOf(workspace: string | undefined): Layer {
    if (workspace === undefined) return everywhere;
    const layer = workspaces.get(workspace) ?? new Map();
    workspaces.set(workspace, layer);
    return layer;
  }

  function get(name: string, workspace: string): Tool | undefined {
    const own = workspaces.get(workspace)?.get(name)?.at(-1);
    const shared = everywhere.get(name)?.at(-1);
    // A tool of a workspace takes precedence, except one of a lower rank than the default.
    return own && shared && own.rank < Math.min(0, shared.rank) ? shared.tool : (own ?? shared)?.tool;
  }
  return {
    register(tools, workspace, rank = 0) {
      const bound = Object.entries(tools).map(([name, tool]) => bindTool(name, tool));
      const layer = layerOf(workspace);
      // One object for each registration, so that two registrations of the same tool can be removed separately.
      const registrations = bound
        .filter((tool) => !tool.experimental || experimental.includes(tool.name))
        .map((tool) => ({ tool, rank }));
      for (const registration of registrations) {
        const { name, definition } = registration.tool;
        // The last ones stay.
        definitions.delete(definition.definitionId);
        definitions.add(definition.definitionId);
        const [below, above] = splitByRank(layer.get(name) ?? [], rank);
        layer.set(name, [...below, registration, ...above]);
      }
      for (const oldest of definitions) {
        if (definitions.size <= maxDefinitions) break;
        definitions.delete(oldest);
      }
      revision += 1;
      registered(registrations.map(({ tool }) => tool));
      return () => {
        for (const registration of registrations) {
          const { name } = registration.tool;
          layer.set(name, layer.get(name)?.filter((other) => other !== registration) ?? []);
        }
        revision += 1;
      };
    },
    get,
    knows: (name) => [everywhere, ...workspaces.values()].some((layer) => last(layer, name) !== undefined),
    all() {
      const layers = [everywhere, ...workspaces.values()];
      const names = new Set(layers.flatMap((layer) => [...layer.keys()]));
      return [...names].sort().flatMap((name) => layers.flatMap((layer) => last(layer, name) ?? []));
    },
    list(workspace) {
      const names = new Set([...everywhere.keys(), ...(workspaces.get(workspace)?.keys() ?? [])]);
      return [...names].sort().flatMap((name) => get(name, workspace) ?? []);
    },
    revision: () => revision,
    wasRegistered: (definitionId) => definitions.has(definitionId),
    addProvider: (provider) => void providers.push(provider),
    async refresh(workspace) {
      for (const provider of providers) await provider.refresh(workspace);
    },
    guardProblem: (workspace) =>
      providers.map((provider) => provider.guardProblem(workspace)).find((problem) => problem !== undefined),
  };
}

const maxDefinitions = 10_000;

interface Registration {
  readonly tool: Tool;
  readonly rank: number;
}

/** Registrations by the name of their tool: the last one serves. */
type Layer = Map<string, readonly Registration[]>;

/** Splits registrations into those up to a rank and those above it. */
function splitByRank(
  registrations: readonly Registration[],
  rank: number,
): [readonly Registration[], readonly Registration[]] {
  const above = registrations.findIndex((other) => other.rank > rank);
  return above < 0 ? [registrations, []] : [registrations.slice(0, above), registrations.slice(above)];
}

function last(layer: Layer | undefined, name: string): Tool | undefined {
  return layer?.get(name)?.at(-1)?.tool;
}

/** A model as callers name it; empty strings if they do not. */
interface Model {
  providerId: string;
  modelId: string;
}

/** Selects the tools that suit a model: those for its provider, and of those that change files the form it was trained on. */
export function offeredTo({ providerId, modelId }: Model, tools: readonly Tool[]): Tool[] {
  const hasPatch = tools.some(({ changeForm }) => changeForm === "patch");
  const unfit = prefersPatches(modelId) && hasPatch ? "replace" : "patch";
  return tools.filter(
    ({ changeForm, providers }) =>
      changeForm !== unfit && (providers === undefined || providerId === "" || providers.includes(providerId)),
  );
}

/** Reports whether models of this family write patches better than they call `edit`. */
function prefersPatches(modelId: string): boolean {
  return modelId.includes("gpt-") && !modelId.includes("oss") && !modelId.includes("gpt-4");
}

/** Converts an input schema to the dialect of a model's provider. All quirks of providers are handled here. */
export function schemaFor({ providerId, modelId }: Model, schema: JsonObject): JsonObject {
  if (providerId.startsWith("google") || modelId.includes("gemini")) return forGemini(schema);
  if (["openai", "azure"].includes(providerId)) return forOpenAi(schema) ?? schema;
  return schema;
}

/** Keywords of a schema that OpenAI's strict mode takes as they are. */
const strictKeywords = new Set([
  ...["type", "description", "title", "enum", "const", "pattern", "format", "multipleOf", "minimum", "maximum"],
  ...["exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "$ref"],
]);
/** Keywords without which a schema would mean something else. */
const strictless = ["allOf", "not", "if", "prefixItems", "patternProperties", "dependentRequired", "dependentSchemas"];

/**
 * Converts a schema to the form of OpenAI's strict mode: objects are closed, every field is required, and one that was optional takes
 * null, which the tool reads as absent. Limits that the mode does not know are left out, and still checked. Undefined if the schema
 * has what strict mode cannot say, such as an object with any keys.
 */
function forOpenAi(schema: JsonObject): JsonObject | undefined {
  const isObjectSchema = schema.type === "object" && schema.anyOf === undefined && schema.oneOf === undefined;
  return isObjectSchema ? strict(schema) : undefined;
}

function strict(schema: JsonObject): JsonObject | undefined {
  if (strictless.some((keyword) => schema[keyword] !== undefined)) return undefined;
  const result: JsonObject = Object.fromEntries(Object.entries(schema).filter(([key]) => strictKeywords.has(key)));
  const members = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(members)) {
    const strictMembers = members.map((member) => (isObject(member) ? strict(member) : undefined));
    if (strictMembers.some((member) => member === undefined)) return undefined;
    result.anyOf = strictMembers.filter((member) => member !== undefined);
  } else if (!["type", "enum", "const", "$ref"].some((keyword) => schema[keyword] !== undefined)) return undefined;
  if (isObject(schema.$defs)) {
    const defs = strictFields(schema.$defs, () => false);
    if (defs === undefined) return undefined;
    result.$defs = defs;
  }
  if (schema.type === "array") {
    const items = isObject(schema.items) ? strict(schema.items) : undefined;
    if (items === undefined) return undefined;
    result.items = items;
  }
  if (schema.type !== "object") return result;
  const { properties = {}, required = [], additionalProperties = false } = schema;
  const isClosed = additionalProperties === false && isObject(properties);
  const fields = isClosed && strictFields(properties, (name) => !(Array.isArray(required) && required.includes(name)));
  if (!fields) return undefined;
  return { ...result, properties: fields, required: Object.keys(fields), additionalProperties: false };
}

/** Converts the fields of an object; undefined if one of them cannot be converted. */
function strictFields(fields: JsonObject, isOptional: (name: string) => boolean): JsonObject | undefined {
  const result: JsonObject = {};
  for (const [name, field] of Object.entries(fields)) {
    const converted = isObject(field) ? strict(field) : undefined;
    if (converted === undefined || !isObject(field)) return undefined;
    result[name] = isOptional(name) ? orNull(withDefault(converted, field.default)) : converted;
  }
  return result;
}

function orNull(schema: JsonObject): JsonObject {
  const { type, enum: allowed, description, ...rest } = schema;
  const about = description === undefined ? {} : { description };
  const isPlain = typeof type === "string" && rest.const === undefined && type !== "object";
  if (!isPlain) {
    const { description: _, ...bare } = schema;
    return { ...about, anyOf: [bare, { type: "null" }] };
  }
  return { ...rest, ...about, type: [type, "null"], ...(Array.isArray(allowed) && { enum: [...allowed, null] }) };
}

function withDefault(schema: JsonObject, value: JsonValue | undefined): JsonObject {
  if (value === undefined) return schema;
  const words = `Default: ${JSON.stringify(value)}.`;
  return { ...schema, description: typeof schema.description === "string" ? `${schema.description}. ${words}` : words };
}

/** Removes what Gemini refuses: enums of numbers, arrays without items, required names without a property, fields of another type. */
function forGemini(schema: JsonObject): JsonObject {
  const { enum: allowed, ...rest } = mapSchemas(schema, forGemini);
  const { type, items, properties, required } = rest;
  const isNumber = type === "integer" || type === "number";
  const result: JsonObject = allowed === undefined || isNumber ? rest : { ...rest, enum: allowed };
  if (isNumber && Array.isArray(allowed)) {
    const words = `One of ${allowed.map(String).join(", ")}.`;
    result.description = typeof rest.description === "string" ? `${rest.description} ${words}` : words;
  }
  if (type === "array" && (!isObject(items) || Object.keys(items).length === 0)) result.items = { type: "string" };
  if (type === "object" && isObject(properties) && Array.isArray(required)) {
    result.required = required.filter((name) => typeof name === "string" && Object.hasOwn(properties, name));
  }
  if (typeof type === "string" && type !== "object") {
    delete result.properties;
    delete result.required;
  }
  return result;
}

const one = ["items", "additionalProperties", "not", "contains"];
const lists = ["anyOf", "oneOf", "allOf", "prefixItems"];
const tables = ["properties", "$defs", "definitions", "patternProperties"];

/** Maps each schema directly inside a schema. */
function mapSchemas(schema: JsonObject, change: (schema: JsonObject) => JsonObject): JsonObject {
  const changed = (value: JsonValue) => (isObject(value) ? change(value) : value);
  return mapValues(schema, (value, key) => {
    if (one.includes(key)) return changed(value);
    if (lists.includes(key) && Array.isArray(value)) return value.map(changed);
    if (tables.includes(key) && isObject(value)) return mapValues(value, changed);
    return value;
  });
}

function mapValues(object: JsonObject, change: (value: JsonValue, key: string) => JsonValue): JsonObject {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value, key)]));
}
