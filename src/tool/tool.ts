import { createHash } from "node:crypto";
import { create, type JsonObject, type MessageInitShape } from "@bufbuild/protobuf";
import * as z from "zod";
import type { PreviewSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type ToolDefinition, ToolDefinitionSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { canonicalJson } from "./canonical-json.ts";
import { InvalidInput } from "./errors.ts";
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
}

/** What rules say of an ask. */
export interface Judgement {
  action: "allow" | "ask" | "deny";
  /** Why, for a person. */
  reason: string;
  /** The pattern of the rule that decided, if one did. */
  rule?: string;
}

/** What a call would do. It is made from the input and from resolved paths alone, so it never fails because of what a file holds or lacks. */
export interface Plan {
  /** A short line for people. */
  title: string;
  asks: readonly Ask[];
  /** Files whose content an approval is bound to: those that will change, or be run. */
  binds?: readonly ResolvedPath[];
  /** The working directory, if the call has one: an approval is bound to it. */
  cwd?: string;
  /** The environment that the run gets from the service: an approval is bound to it. */
  environment?: Readonly<Record<string, string>>;
  /** Files whose existence or content `inspect` tells about; it is held back where `read` of one is not allowed. */
  reveals?: readonly ResolvedPath[];
  /** Shows what will happen and checks that it can. A check that fails throws `ToolFailure`. No side effects; may be repeated. */
  inspect?(): Promise<{ preview?: MessageInitShape<typeof PreviewSchema> }>;
  /** The longest run, where the input decides it. */
  timeoutMs?: number;
}

/** What planning may use. */
export interface PlanContext {
  sessionId: string;
  callId: string;
  agent: string;
  workspace: Workspace;
  /** What this session tree has read: canonical path → SHA-256 (hex) of the content. */
  reads: { get(path: string): Promise<string | undefined> };
  /** What rules say of something that the call would touch besides what it asks for. Nobody is asked, and grants do not count. */
  judge(ask: Ask): Judgement;
}

/** What execution may use. It is the same for every tool. */
export interface ToolContext extends Omit<PlanContext, "reads"> {
  messageId: string;
  /** The model that called, as the caller says; empty strings if it did not. */
  model: { providerId: string; modelId: string };
  /** Aborted on cancel, on the call's deadline and when the replica loses the call; the reason says which. */
  signal: AbortSignal;
  reads: {
    get(path: string): Promise<string | undefined>;
    /** Records that the session tree has seen this content. */
    record(path: string, sha256: string): Promise<void>;
  };
  /** The stored outputs of this session tree, by the ID of `toolgate-output:ID`. */
  outputs: {
    read(id: string, offset: number, limit: number): Promise<{ data: Uint8Array; total: number } | undefined>;
  };
  /** Replaces title and metadata for whoever watches. */
  metadata(update: { title?: string; metadata?: JsonObject }): void;
  /** Appends to the call's output. Await it: it resolves when the store has room for more. */
  output(chunk: Uint8Array): Promise<void>;
  /** Asks a person in the middle of the run. Prefer asks in `plan`: this one dies with its replica. */
  ask(ask: Ask): Promise<void>;
  /** What the caller's metadata says to tools. */
  extra: JsonObject;
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
  attachments?: readonly Attachment[];
}

/** How a tool is written down; `defineTool` makes a `Tool` of it. */
export interface ToolConfig<Input extends z.ZodType, P extends Plan> {
  /** `[A-Za-z][A-Za-z0-9_-]{0,63}`. */
  name: string;
  /** For the model. */
  description: string;
  input: Input;
  /** Raise it when behaviour changes and schemas do not: `definition_id` changes. */
  version?: string;
  /** Raise it when what "always" meant no longer holds: grants of before stop serving. */
  permissionVersion?: string;
  readOnly?: boolean;
  /** Running it again does no more than running it once: it may be run again after a crash. */
  idempotent?: boolean;
  destructive?: boolean;
  openWorld?: boolean;
  /** What the model sees of a long output; default head, 2,000 lines, 51,200 bytes. */
  keep?: { end?: "head" | "tail"; lines?: number; bytes?: number };
  plan(input: z.output<Input>, ctx: PlanContext): Promise<P> | P;
  execute(input: z.output<Input>, ctx: ToolContext & { plan: P }): Promise<ToolResult> | ToolResult;
}

/** A tool as the engine sees it. Its input is decoded before `plan` and `execute`, which get only what `decode` returned. */
export interface Tool {
  readonly name: string;
  readonly definition: ToolDefinition;
  readonly idempotent: boolean;
  /** What grants are bound to: input schema and permission version. */
  readonly permissionBinding: string;
  readonly keep: { end: "head" | "tail"; lines: number; bytes: number };
  /** Throws `InvalidInput` with the path of each field that does not fit. */
  decode(input: JsonObject): unknown;
  plan(input: unknown, ctx: PlanContext): Promise<Plan>;
  execute(input: unknown, plan: Plan, ctx: ToolContext): Promise<ToolResult>;
}

/** Makes a tool. It can invoke only `config.execute`, and only with input that fits `config.input`. */
export function defineTool<Input extends z.ZodType, P extends Plan>(config: ToolConfig<Input, P>): Tool {
  const { name, description, input, version = "1", permissionVersion = "1" } = config;
  if (!toolName.test(name)) throw new Error(`tool name "${name}" does not fit ${toolName}`);
  // zod writes plain JSON, typed as its own schema type.
  const inputSchema = z.toJSONSchema(input, { io: "input", unrepresentable: "any" }) as JsonObject;
  const definitionId = sha256(canonicalJson({ name, input: inputSchema, version })).slice(0, 32);
  return {
    name,
    definition: create(ToolDefinitionSchema, {
      name,
      definitionId,
      description,
      inputSchema,
      annotations: {
        readOnly: config.readOnly ?? false,
        idempotent: config.idempotent ?? false,
        destructive: config.destructive ?? false,
        openWorld: config.openWorld ?? false,
      },
    }),
    idempotent: config.idempotent ?? false,
    permissionBinding: sha256(canonicalJson({ input: inputSchema, permissionVersion })).slice(0, 32),
    keep: { end: "head", lines: 2_000, bytes: 51_200, ...config.keep },
    decode(value) {
      const result = input.safeParse(value);
      if (result.success) return result.data;
      throw new InvalidInput(
        name,
        result.error.issues.map(({ path, message }) => ({ path: path.join("."), message })),
      );
    },
    // The engine passes on what decode() and plan() of this same tool returned; the types were erased in between.
    async plan(value, ctx) {
      return await config.plan(value as z.output<Input>, ctx);
    },
    async execute(value, plan, ctx) {
      return await config.execute(value as z.output<Input>, { ...ctx, plan: plan as P });
    },
  };
}

const toolName = /^[A-Za-z][A-Za-z0-9_-]{0,63}$/;
const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");
