import { createHash } from "node:crypto";
import { create, type JsonObject, type JsonValue, type MessageInitShape } from "@bufbuild/protobuf";
import type * as z from "zod";
import type { FilePart, PreviewSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type ToolDefinition, ToolDefinitionSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import { type Decoded, inputCodec, outputCodec, type ValueSchema } from "./codec.ts";
import type { ResolvedPath, Workspace } from "./workspace.ts";

/** What a call needs to be allowed: all of its patterns, of one kind. */
export interface Ask {
  /** The kind, such as `bash`, `edit` or `read`. */
  permission: string;
  /** What is asked for: a command, a path, an address. None is never "allow": it is asked. */
  patterns: readonly string[];
  /** For kinds that are judged by path: the canonical absolute path of each pattern. */
  paths?: readonly string[];
  /** For commands: the canonical folder in which they would run. */
  cwd?: string;
  /** Wildcards that "always" may save beside exactly what is asked; only those that match it are offered. */
  always?: readonly string[];
  /** Why a person must be asked each time, although rules allow it: said of the patterns, such as `has other names`. */
  alwaysAsk?: string;
  /** For a web address: the IP address that its host's name leads to, once that is known. */
  leadsTo?: string;
  /** What user interfaces are told. */
  metadata?: JsonObject;
  /** Whoever allows this allows what the body asks of the same kind, too; what is denied stays denied. */
  wholeCall?: true;
}

/** What rules say of an ask. */
export interface Judgement {
  action: "allow" | "ask" | "deny";
  /** Why, for a person. */
  reason: string;
  /** The pattern of the rule that decided, if one did. */
  rule?: string;
}

/** Says what rules say of something. Nobody is asked, and grants do not count. */
export interface Judge {
  (ask: Ask): Judgement;
  /**
   * The words of which the name of a file below a folder must hold one, in lower case, for `read` of it not to be allowed;
   * only for names of printable ASCII without a long run of spaces. Undefined: any file may be one.
   */
  readDoubts(folder: Pick<ResolvedPath, "absolute" | "pattern">): readonly string[] | undefined;
}

/** What a call would do. It is made from the input and from resolved paths alone, so it never fails because of what a file holds or lacks. */
export interface Plan {
  /** A short line for people. */
  title: string;
  asks: readonly Ask[];
  /** Files whose content an approval is bound to: those that will change, or be run. */
  binds?: readonly Pick<ResolvedPath, "absolute">[];
  /** The working directory, if the call has one: an approval is bound to it. */
  cwd?: string;
  /** Variables that the call's commands get in addition: an approval is bound to them. */
  env?: Readonly<Record<string, string>>;
  /** Where the programs of its commands are looked for, as in PATH: an approval is bound to those that are found. */
  searchPath?: string;
  /** Files whose existence or content `inspect` tells about; it is held back where `read` of one is not allowed. */
  reveals?: readonly ResolvedPath[];
  /**
   * Checks that it can happen, and shows what will. A check that fails throws `ToolFailure`; the preview is made only if
   * somebody is to see it. No side effects; may be repeated.
   */
  inspect?(): Promise<{ preview?(): MessageInitShape<typeof PreviewSchema> }>;
  /** The longest run, where the input decides it. */
  timeoutMs?: number;
}

/** What planning may use. */
export interface PlanContext {
  sessionId: string;
  callId: string;
  agent: string;
  workspace: Workspace;
  /** What plugins add to the environment of commands that run in a folder. */
  environment(cwd: string): Promise<Record<string, string>>;
  /** What this session tree has read: canonical path → SHA-256 (hex) of the content. */
  reads: { get(path: string): Promise<string | undefined> };
  /** For what the call would touch besides what it asks for. */
  judge: Judge;
}

/** A place in a distributed trace, as W3C Trace Context writes it in headers. */
export interface TraceContext {
  traceparent: string;
  tracestate?: string;
}

/** What execution may use. It is the same for every tool. */
export interface ToolContext extends Omit<PlanContext, "environment" | "reads"> {
  messageId: string;
  /** The model that called, as the caller says; empty strings if it did not. */
  model: { providerId: string; modelId: string };
  /** Aborted on cancel, on the call's deadline and when the replica loses the call; the reason says which. */
  signal: AbortSignal;
  /** The folders outside the workspace that this call was allowed to touch, canonical. */
  outside: readonly string[];
  reads: {
    get(path: string): Promise<string | undefined>;
    /** Records that the session tree has seen this content. */
    record(path: string, sha256: string): Promise<void>;
  };
  /** What tools keep for this session, under names of their own; a subagent's session has its own. */
  state: {
    get(name: string): Promise<JsonValue | undefined>;
    set(name: string, value: JsonValue): Promise<void>;
  };
  /** The stored outputs of this session tree, by the ID of `toolgate-output:ID`. */
  outputs: {
    read(id: string, offset: number, limit: number): Promise<{ data: Uint8Array; total: number } | undefined>;
  };
  /** Replaces title and metadata for whoever watches. */
  metadata(update: { title?: string; metadata?: JsonObject }): void;
  /** Appends to the call's output; the chunk is copied. Await it: it resolves when the store has room for more. */
  output(chunk: Uint8Array): Promise<void>;
  /**
   * Makes calls of their own in this session for whoever made this one, at the same time; each is judged and asked for like any
   * other. `atomic`: none starts before all may, and if one may not, none does. The deadline stands still meanwhile.
   */
  calls(children: readonly ChildCall[], options: { atomic: boolean }): Promise<ChildResult[]>;
  /** Asks a person in the middle of the run. Prefer asks in `plan`: this one dies with its replica. */
  ask(ask: Ask): Promise<void>;
  /** What the caller's metadata says to tools. */
  extra: JsonObject;
  /** The trace that the run belongs to: send it along with requests. Absent if nobody traces. */
  trace?: TraceContext;
}

/** A call that a tool makes. */
export interface ChildCall {
  tool: string;
  input: JsonObject;
}

/** How it ended. */
export interface ChildResult {
  callId: string;
  status: "completed" | "error";
  title: string;
  /** The output, or what went wrong. */
  text: string;
  /** The files that it returned. */
  attachments: readonly FilePart[];
}

/** A file that a tool returns. */
export interface Attachment {
  mime: string;
  filename?: string;
  data: Uint8Array;
}

/** What a tool returns. */
export interface ToolResult {
  /** Replaces the plan's title. */
  title?: string;
  /** The whole text; absent: what was written with `output()`. It is bounded afterwards, not by the tool. */
  output?: string;
  /** Appended behind the bounded output, for what the model must not miss. */
  note?: string;
  metadata?: JsonObject;
  /** At most 5 MiB each; those of another call are passed on as they are. */
  attachments?: readonly (Attachment | FilePart)[];
  /** The encoded output of a tool that has an output schema; `defineTool` sets it. */
  structured?: JsonValue;
}

/** What a model is shown of structured output. */
export type Content = { type: "text"; text: string } | ({ type: "media" } & Attachment);

/** How a tool is written down; `defineTool` makes a `Tool` of it. */
export interface ToolConfig<Input extends ValueSchema, P extends Plan, Output extends z.ZodType> {
  /** `[A-Za-z][A-Za-z0-9_-]{0,63}`. */
  name: string;
  /** For the model. */
  description: string;
  input: Input;
  /** Then `execute` returns a value of it in place of a `ToolResult`; one that does not fit never completes the call. */
  output?: Output;
  /** Raise it when behaviour changes and schemas do not: `definition_id` changes. */
  version?: string;
  /** Raise it when what "always" meant no longer holds: grants of before stop serving. */
  permissionVersion?: string;
  readOnly?: boolean;
  /** Running it again does no more than running it once: it may be run again after a crash. */
  idempotent?: boolean;
  destructive?: boolean;
  openWorld?: boolean;
  /** The providers whose models are offered it; default all. */
  providers?: readonly string[];
  /** Offered only where the configuration names it under `experimental`. */
  experimental?: boolean;
  /** What the model sees of a long output: its head, its tail, or half of both; default head, 2,000 lines, 51,200 bytes. */
  keep?: { end?: "head" | "tail" | "both"; lines?: number; bytes?: number };
  /** The longest run, where neither the call nor the plan says. */
  timeoutMs?: number;
  /** Default: asks for the permission of the tool's name, with the whole input as its pattern. */
  plan?(input: Decoded<Input>, ctx: PlanContext): Promise<P> | P;
  execute(input: Decoded<Input>, ctx: ToolContext & { plan: P }): Promise<ReturnedBy<Output>> | ReturnedBy<Output>;
  /** What the model sees of the output, as encoded; pure, and fails for none. Default: its JSON, of a string the string itself. */
  toModelOutput?(result: { input: Decoded<Input>; output: z.input<Output> }): readonly Content[];
}

/** What `execute` returns: with an output schema a value that fits it. */
export type ReturnedBy<Output extends z.ZodType> = [Output] extends [never] ? ToolResult : z.output<Output>;

/** A tool as the engine sees it: frozen, and opaque. Its input is decoded before `plan` and `execute`, which get only what `decode` returned. */
export interface Tool {
  readonly name: string;
  readonly definition: ToolDefinition;
  readonly idempotent: boolean;
  readonly providers: readonly string[] | undefined;
  readonly experimental: boolean;
  /** What grants are bound to: input schema and permission version. */
  readonly permissionBinding: string;
  readonly keep: { end: "head" | "tail" | "both"; lines: number; bytes: number };
  /** Throws `InvalidInput` with the path of each field that does not fit. */
  decode(input: JsonObject): unknown;
  plan(input: unknown, ctx: PlanContext): Promise<Plan>;
  /** Throws `InvalidOutput` if the result does not fit the tool's schema. */
  execute(input: unknown, plan: Plan, ctx: ToolContext): Promise<ToolResult>;
}

/** Makes a tool. It can invoke only `config.execute`, and only with input that fits `config.input`. */
export function defineTool<const Input extends ValueSchema, P extends Plan = Plan, Output extends z.ZodType = never>(
  config: ToolConfig<Input, P, Output>,
): Tool {
  const { name, description, version = "1", permissionVersion = "1", timeoutMs, execute, toModelOutput } = config;
  const plan = config.plan ?? ((input) => wholeInput(name, input));
  if (!toolName.test(name)) {
    throw new Error(
      `"${name}" cannot be a tool's name: it needs a letter first, then up to 63 letters, digits, "_" or "-"; rename it`,
    );
  }
  const input = inputCodec(name, config.input);
  const output = config.output && outputCodec(name, config.output);
  const schemas = { input: input.schema, ...(output && { output: output.schema }) };
  const definition = create(ToolDefinitionSchema, {
    name,
    definitionId: sha256(canonicalJson({ name, ...schemas, version })).slice(0, 32),
    description,
    inputSchema: structuredClone(input.schema),
    ...(output && { outputSchema: structuredClone(output.schema) }),
    annotations: {
      readOnly: config.readOnly ?? false,
      idempotent: config.idempotent ?? false,
      destructive: config.destructive ?? false,
      openWorld: config.openWorld ?? false,
    },
  });
  return Object.freeze({
    name,
    definition: deepFreeze(definition),
    idempotent: config.idempotent ?? false,
    providers: config.providers && [...config.providers],
    experimental: config.experimental ?? false,
    permissionBinding: sha256(canonicalJson({ input: input.schema, permissionVersion })).slice(0, 32),
    keep: { end: "head", lines: 2_000, bytes: 51_200, ...config.keep } as const,
    decode: input.decode,
    // The engine passes on what decode() and plan() of this same tool returned; the types were erased in between.
    async plan(value: unknown, ctx: PlanContext): Promise<Plan> {
      const planned = await plan(value as Decoded<Input>, ctx);
      return timeoutMs === undefined ? planned : { timeoutMs, ...planned };
    },
    async execute(value: unknown, plan: Plan, ctx: ToolContext): Promise<ToolResult> {
      const returned = await execute(value as Decoded<Input>, { ...ctx, plan: plan as P });
      if (!output) return returned as ToolResult;
      const structured = output.encode(returned);
      const shown = toModelOutput?.({ input: value as Decoded<Input>, output: structured as z.input<Output> });
      return { structured, ...contents(shown ?? [textOf(structured)]) };
    },
  });
}

/** The plan of a tool that has none of its own. */
function wholeInput(name: string, input: unknown): Plan {
  const text = canonicalJson(
    JSON.parse(JSON.stringify(input, (_key, part) => (typeof part === "bigint" ? `${part}` : part))),
  );
  // An ask is shown and stored whole; what is beyond is named by its hash, so that the pattern still means this input alone.
  const pattern = text.length <= maxPatternLength ? text : `${text.slice(0, maxPatternLength)}… sha256:${sha256(text)}`;
  return { title: name, asks: [{ permission: name, patterns: [pattern], wholeCall: true }] };
}

const textOf = (output: JsonValue): Content => ({
  type: "text",
  text: typeof output === "string" ? output : JSON.stringify(output),
});

function contents(shown: readonly Content[]): Pick<ToolResult, "output" | "attachments"> {
  return {
    output: shown.flatMap((content) => (content.type === "text" ? [content.text] : [])).join("\n"),
    attachments: shown.flatMap((content) => (content.type === "media" ? [content] : [])),
  };
}

function deepFreeze<T>(value: T): T {
  if (typeof value === "object" && value !== null) Object.values(Object.freeze(value)).forEach(deepFreeze);
  return value;
}

const maxPatternLength = 8_192;
const toolName = /^[A-Za-z][A-Za-z0-9_-]{0,63}$/;
const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");
