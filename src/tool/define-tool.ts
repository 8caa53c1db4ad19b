import { createHash } from "node:crypto";
import { create, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import type * as z from "zod";
import type { ToolExecutor } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type ToolDefinition, ToolDefinitionSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Ask } from "../core/ask.ts";
import type { Durability } from "../core/durability.ts";
import { canonicalJson, plainJson } from "../core/json.ts";
import { type Decoded, inputCodec, isZod, type OutputCodec, outputCodec, type ValueSchema } from "./codec.ts";
import { InvalidOutput } from "./errors.ts";
import { fillAsk } from "./permission-template.ts";
import type { RemoteBodies } from "./remote.ts";
import type {
  Attachment,
  ChangeForm,
  DefinedTool,
  OfferContext,
  Plan,
  PlanContext,
  Tool,
  ToolContext,
  ToolResult,
} from "./tool.ts";

/**
 * What a call asks for, with holes for fields of the input: `{env}/{service}`. A field that is absent makes it an ask for the whole
 * input. See PermissionTemplate in worker.proto.
 */
export interface AskTemplate {
  /** Default: the tool's name. */
  permission?: string;
  patterns: readonly string[];
  /** Wildcards that are offered to approvers for "always". */
  always?: readonly string[];
  metadata?: JsonObject;
}

/** Settings of a tool for the worker that serves it. */
export interface WorkerSettings {
  /** A template of the title, such as `{service} to {env}`. Default: the name. */
  title?: string;
  /** Ms that a call waits for a worker with capacity. Default: 60,000. */
  queueMs?: number;
  /** Maximum number of bodies of this tool in one process. Default: the capacity of the process. */
  maxConcurrent?: number;
  /** Prefers the process of the session's last call. */
  prefersSession?: boolean;
  /** Keys of the caller's metadata that the body gets as `ctx.extra`. Default: none. */
  metadataKeys?: readonly string[];
}

/** A piece of structured output as models see it. */
export type Content = { type: "text"; text: string } | ({ type: "media" } & Attachment);

/** The declaration of a tool; `defineTool` makes a `Tool` of it. */
export interface ToolConfig<Input extends ValueSchema, P extends Plan, Output extends z.ZodType> {
  /** `[A-Za-z][A-Za-z0-9_-]{0,63}`. Default: the key under which it is registered, or the name of its file. */
  name?: string;
  /** Shown to models. */
  description: string;
  input: Input;
  /** With it, `execute` returns a value that fits it instead of a `ToolResult`; a value that does not fit fails the call. */
  output?: Output;
  /** JSON Schema of `structured` in the `ToolResult`; a result that does not fit it fails the call. For tools without `output`. */
  outputSchema?: JsonObject;
  /** Raise it when behaviour changes: it changes `definition_id`, as name, description, schemas and hints do. */
  version?: string;
  /** Raise it when earlier "always" approvals must no longer hold: earlier grants stop matching. */
  permissionVersion?: string;
  readOnly?: boolean;
  /** Running it twice has the effect of running it once: it may be run again after a crash. */
  idempotent?: boolean;
  /** Set it for a body that may be entered again after its replica is lost; `true` for one that only makes calls. See `Tool.durable`. */
  durable?: true | Durability;
  /** Set it for a tool whose bodies run in workers. */
  remote?: RemoteBodies;
  /** The executor that calls record, for bodies that run neither in the service nor in workers. */
  executor?: ToolExecutor;
  /** Name of the fleet of these workers. The definition ID does not cover it. */
  fleet?: string;
  destructive?: boolean;
  openWorld?: boolean;
  /**
   * Permissions that its calls can ask, without wildcards and without those of the engine (`external_directory`,
   * `doom_loop`); empty if they ask for none. An agent sees the tool unless all of them are denied to it. It grants nothing:
   * an ask of another permission is judged like any other. Default: anything, and the tool is listed by its own name.
   *
   * A template is also what a call asks, in place of `plan`: workers declare it, so that a call asks while none is connected.
   */
  permissions?: readonly (string | AskTemplate)[];
  /** Set it on a tool that changes files: a model is offered the form that it was trained on. */
  changeForm?: ChangeForm;
  /** Providers whose models are offered the tool; default all. */
  providers?: readonly string[];
  /** Offers the tool only if the configuration names it under `experimental`. */
  experimental?: boolean;
  /** Part of a long output that the model sees: its head, its tail, or half of both. Default: head, 2,000 lines, 51,200 bytes. */
  keep?: { end?: "head" | "tail" | "both"; lines?: number; bytes?: number };
  /** Maximum duration of a run, unless the call or the plan sets one. */
  timeoutMs?: number;
  /** Settings for workers; without effect elsewhere. */
  worker?: WorkerSettings;
  /**
   * Returns text that ListTools appends to the description for an agent in a workspace: the data that the tool offers there. It
   * changes without notice, so the definition ID does not cover it.
   */
  offer?(ctx: OfferContext): Promise<string>;
  /**
   * Returns the description for an agent in place of `description`, which the definition ID covers; undefined if the tool is not
   * offered to that agent.
   */
  describe?(ctx: OfferContext): Promise<string | undefined>;
  /** Default: asks for the permission named like the tool, with the whole input as its pattern. */
  plan?(input: Decoded<Input>, ctx: PlanContext): Promise<P> | P;
  execute(input: Decoded<Input>, ctx: ToolContext & { plan: P }): Promise<ReturnedBy<Output>> | ReturnedBy<Output>;
  /** Renders encoded output for the model; pure, and never throws. Default: its JSON, or a string as it is. */
  toModelOutput?(result: { input: Decoded<Input>; output: z.input<Output> }): readonly Content[];
}

/** The return type of `execute`: with an output schema, a value that fits it. */
export type ReturnedBy<Output extends z.ZodType> = [Output] extends [never] ? ToolResult : z.output<Output>;

/** Makes a tool. The tool runs only `config.execute`, and only with input that fits `config.input`. */
export function defineTool<const Input extends ValueSchema, P extends Plan = Plan, Output extends z.ZodType = never>(
  config: ToolConfig<Input, P, Output>,
): DefinedTool {
  // A copy, so that later changes of the object have no effect on a tool that is bound later.
  const input = isZod(config.input) ? config.input : structuredClone(config.input);
  const fixed = { ...config, input };
  return opaqueTool(makeTool(fixed, fixed.name === undefined ? {} : { name: fixed.name }));
}

/** The name under which a tool serves, and the version of its code, where it declares none. */
interface Binding {
  name?: string;
  source?: string;
  /** The name is that of an agent's own tool, `KIND:Tool`; such a tool cannot be registered. */
  isForeign?: true;
}

/** What `defineTool` made of a declaration. */
interface Made {
  tool: Tool;
  declared: Declaration;
  bind(binding: Binding): Tool;
}

/** Declarations of a tool that its definition does not contain. */
export interface Declaration
  extends Pick<
    ToolConfig<ValueSchema, Plan, z.ZodType>,
    "name" | "version" | "permissionVersion" | "timeoutMs" | "worker"
  > {
  /** It declares a plan, instead of the default one. */
  hasPlan: boolean;
  templates: readonly AskTemplate[];
}

/** Every tool that `defineTool` made, and every bound one: a copy of one, or any other object, is none. */
const made = new WeakMap<object, Made>();

function madeOf(tool: DefinedTool): Made {
  const known = made.get(tool);
  if (!known) throw new TypeError("a value is not a tool that defineTool made");
  return known;
}

/** Reports whether a value was made by `defineTool`. */
export function isTool(value: unknown): value is DefinedTool {
  return typeof value === "object" && value !== null && made.has(value);
}

/** Reports whether a tool declares its version. */
export function hasVersion(tool: DefinedTool): boolean {
  return made.get(tool)?.declared.version !== undefined;
}

/** Returns what a tool declares beside its definition. */
export function declarationOf(tool: DefinedTool): Declaration {
  return madeOf(tool).declared;
}

/**
 * Returns a tool as it serves under a name; `source` identifies its code in its definition ID. Throws unless `defineTool` made it,
 * for this name or for any.
 */
export function bindTool(name: string, value: unknown, source?: string): Tool {
  const known = typeof value === "object" && value !== null ? made.get(value) : undefined;
  if (!known) {
    throw new TypeError(`"${name}" is not a tool: register what defineTool returned, not a copy of it`);
  }
  const { name: declaredName } = known.declared;
  if (declaredName !== undefined && declaredName !== name) {
    throw new TypeError(
      `the tool "${declaredName}" cannot serve as "${name}": register it under its own name, or leave out name in defineTool`,
    );
  }
  if (known.tool.name === name && source === undefined) return known.tool;
  return known.bind({ name, ...(source !== undefined && { source }) });
}

/** Returns a tool as an object without fields: only what binds it reads its schemas, or runs its body. */
export function opaqueTool(tool: Tool): DefinedTool {
  const opaque = Object.freeze({}) as DefinedTool;
  made.set(opaque, madeOf(tool));
  return opaque;
}

/** Returns a tool under the name that it declares; `name` is empty if it declares none. */
export function boundTool(tool: DefinedTool): Tool {
  return madeOf(tool).tool;
}

/** Returns a tool that `defineTool` made without a name as the tool of an agent, under a name such as `KIND:Tool`. */
export function bindForeignTool(name: string, tool: DefinedTool): Tool {
  const known = made.get(tool);
  if (known === undefined || known.declared.name !== undefined) throw new TypeError(`"${name}" is no unnamed tool`);
  return known.bind({ name, isForeign: true });
}

function makeTool<Input extends ValueSchema, P extends Plan, Output extends z.ZodType>(
  config: ToolConfig<Input, P, Output>,
  { name: boundName, source, isForeign }: Binding,
): Tool {
  const { permissionVersion = "1", timeoutMs, version = "", execute, toModelOutput } = config;
  const name = boundName ?? "";
  const templates = (config.permissions ?? []).filter((permission) => typeof permission !== "string");
  const permissions = permissionNames(name, config.permissions);
  const plan = config.plan ?? ((input) => templatePlan(name, templates, input));
  if (boundName !== undefined) {
    if (!isForeign) checkName(name);
    checkPermissions({ name, permissions, templates, hasPlan: config.plan !== undefined });
  }
  const input = inputCodec(name, config.input);
  const schema = config.output ?? config.outputSchema;
  const output = schema && outputCodec(name, schema);
  const definition = definitionOf(
    config,
    name,
    { input: input.schema, ...(output && { output: output.schema }) },
    source,
  );
  const tool = Object.freeze<Omit<Tool, keyof DefinedTool>>({
    name,
    definition: deepFreeze(definition),
    idempotent: config.idempotent ?? false,
    durable: config.durable === true ? {} : config.durable,
    remote: config.remote,
    executor: config.executor,
    providers: config.providers && [...config.providers],
    experimental: config.experimental ?? false,
    permissions: permissions && Object.freeze(permissions),
    changeForm: config.changeForm,
    permissionBinding: sha256(canonicalJson({ input: input.schema, permissionVersion })).slice(0, 32),
    bodyBinding: sha256(canonicalJson({ input: input.schema, permissionVersion, version })).slice(0, 32),
    keep: { end: "head", lines: 2_000, bytes: 51_200, ...config.keep } as const,
    ...(config.offer && { offer: config.offer }),
    ...(config.describe && { describe: config.describe }),
    decode: input.decode,
    // The engine passes values that decode() and plan() of this same tool returned; their types were erased in between.
    async plan(value: unknown, ctx: PlanContext): Promise<Plan> {
      const planned = await plan(value as Decoded<Input>, ctx);
      return timeoutMs === undefined ? planned : { timeoutMs, ...planned };
    },
    async execute(value: unknown, plan: Plan, ctx: ToolContext): Promise<ToolResult> {
      const returned = await execute(value as Decoded<Input>, { ...ctx, plan: plan as P });
      if (!output) return returned as ToolResult;
      if (!config.output) return checkStructured(output, returned as ToolResult);
      const structured = output.encode(returned);
      const shown = toModelOutput?.({ input: value as Decoded<Input>, output: structured as z.input<Output> });
      return { structured, ...contentsOf(name, shown ?? [textOf(structured)]) };
    },
  }) as Tool;
  made.set(tool, {
    tool,
    declared: {
      hasPlan: config.plan !== undefined,
      templates,
      ...(config.worker && { worker: config.worker }),
      ...(config.name !== undefined && { name: config.name }),
      ...(config.version !== undefined && { version: config.version }),
      ...(config.permissionVersion !== undefined && { permissionVersion: config.permissionVersion }),
      ...(timeoutMs !== undefined && { timeoutMs }),
    },
    bind: (binding) => makeTool(config, binding),
  });
  return tool;
}

/** Makes the definition that models see. Its ID names everything in it, the declared version, and the code if `source` identifies it. */
function definitionOf(
  {
    description,
    version,
    fleet = "",
    ...hints
  }: Pick<ToolConfig<ValueSchema, Plan, z.ZodType>, "description" | "version" | "fleet" | Hint>,
  name: string,
  { input, output }: { input: JsonObject; output?: JsonObject },
  source: string | undefined,
): ToolDefinition {
  const { readOnly = false, idempotent = false, destructive = false, openWorld = false } = hints;
  const annotations = { readOnly, idempotent, destructive, openWorld };
  const identity = {
    ...{ name, description, input, annotations },
    ...(output && { output }),
    ...(version !== undefined && { version }),
    ...(source !== undefined && { source }),
  };
  return create(ToolDefinitionSchema, {
    name,
    definitionId: sha256(canonicalJson(identity)).slice(0, 32),
    description,
    inputSchema: structuredClone(input),
    ...(output && { outputSchema: structuredClone(output) }),
    annotations,
    worker: fleet,
  });
}

type Hint = "readOnly" | "idempotent" | "destructive" | "openWorld";

function checkName(name: string): void {
  if (toolName.test(name)) return;
  throw new Error(
    `"${name}" cannot be a tool's name: start with a letter, then use up to 63 letters, digits, "_" or "-"`,
  );
}

/** Returns the names of the permissions that a tool declares; undefined if it declares none. Templates add that of the tool. */
function permissionNames(
  name: string,
  permissions: readonly (string | AskTemplate)[] | undefined,
): string[] | undefined {
  const names = permissions?.flatMap((each) => (typeof each === "string" ? each : [each.permission ?? name, name]));
  return names && [...new Set(names)];
}

/** Throws if a tool declares what it cannot ask. */
function checkPermissions({
  name,
  permissions,
  templates,
  hasPlan,
}: Pick<Declaration, "hasPlan" | "templates"> & { name: string; permissions: readonly string[] | undefined }) {
  const wrong = permissions?.find((permission) => permission === "" || /[*?]/.test(permission));
  if (wrong !== undefined) {
    throw new Error(`tool "${name}" declares the permission "${wrong}"; name each one, without wildcards`);
  }
  if (hasPlan && templates.length > 0) {
    throw new Error(`tool "${name}" has a plan and templates of permissions; let the plan ask, or leave it out`);
  }
  if (hasPlan || permissions === undefined || permissions.includes(name)) return;
  throw new Error(`tool "${name}" has no plan, so it asks "${name}": add that to its permissions, or write a plan`);
}

/** Makes the plan of templates: each one filled, and the tool's own permission for the whole input if none of them is of that. */
function templatePlan(name: string, templates: readonly AskTemplate[], input: unknown): Plan {
  const whole = wholeInput(name, input);
  if (templates.length === 0) return whole;
  const fields = plainJson(Object(input));
  const asks = templates.flatMap((template) => {
    const { permission = name } = template;
    return fillAsk({ ...template, permission }, fields) ?? wholeInput(permission, input).asks;
  });
  return asks.some(({ permission }) => permission === name)
    ? { ...whole, asks }
    : { ...whole, asks: [...asks, ...whole.asks] };
}

/** Makes the default plan: one ask for the whole input; of a tool named `bash` for the command line in it. */
export function wholeInput(name: string, input: unknown): Plan {
  const fields: JsonValue = JSON.parse(
    JSON.stringify(input, (_key, part) => (typeof part === "bigint" ? `${part}` : part)),
  );
  const text = canonicalJson(fields);
  // Asks are shown and stored whole. A hash stands for the truncated part, so that the pattern still means this input alone.
  const pattern = text.length <= maxPatternLength ? text : `${text.slice(0, maxPatternLength)}… sha256:${sha256(text)}`;
  const read = name === "bash" ? (commandIn(fields) ?? { isText: true as const }) : {};
  return { title: name, asks: [{ permission: name, patterns: [pattern], ...read, wholeCall: true }] };
}

/** Finds the command line and its directory in an input. Undefined unless it is clear which field is which. */
function commandIn(input: JsonValue): (Pick<Ask, "patterns"> & Partial<Pick<Ask, "cwd">>) | undefined {
  const fields = new Map(Object.entries(Object(input)));
  const given = (...names: string[]) => names.flatMap((name) => (fields.has(name) ? [fields.get(name)] : []));
  const [line, ...otherLines] = given("command", "cmd");
  const [cwd, ...otherPlaces] = given("workdir", "cwd");
  if (typeof line !== "string" || line.trim() === "" || otherLines.length > 0) return undefined;
  if ((cwd !== undefined && typeof cwd !== "string") || otherPlaces.length > 0) return undefined;
  return { patterns: [line], ...(cwd !== undefined && { cwd }) };
}

function checkStructured(output: OutputCodec, result: ToolResult): ToolResult {
  return { ...result, structured: output.encode(result.structured ?? null) };
}

const textOf = (output: JsonValue): Content => ({
  type: "text",
  text: typeof output === "string" ? output : JSON.stringify(output),
});

function contentsOf(name: string, shown: readonly Content[]): Pick<ToolResult, "output" | "attachments"> {
  const issues = shown.flatMap((content, index) => {
    const message = contentProblem(content);
    return message === undefined ? [] : { path: `toModelOutput()[${index}]`, message };
  });
  if (issues.length > 0) throw new InvalidOutput(name, issues);
  return {
    output: shown.flatMap((content) => (content.type === "text" ? [content.text] : [])).join("\n"),
    attachments: shown.flatMap((content) => (content.type === "media" ? [content] : [])),
  };
}

/** Finds out why a value is no content; tools that are not type-checked return any. */
function contentProblem(content: Content): string | undefined {
  switch (content.type) {
    case "text":
      return typeof content.text === "string" ? undefined : "text is not a string";
    case "media":
      if (typeof content.mime !== "string") return 'media has no mime; write, for example, "image/png"';
      return content.data instanceof Uint8Array ? undefined : "data of media is not a Uint8Array";
    default:
      return `there is no content of the type "${String(Object(content).type)}"; return text or media`;
  }
}

function deepFreeze<T>(value: T): T {
  if (typeof value === "object" && value !== null) Object.values(Object.freeze(value)).forEach(deepFreeze);
  return value;
}

const maxPatternLength = 8_192;
const toolName = /^[A-Za-z][A-Za-z0-9_-]{0,63}$/;
const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");
