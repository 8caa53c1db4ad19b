import type { JsonObject, JsonValue, MessageInitShape } from "@bufbuild/protobuf";
import type { FilePart, PreviewSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { ToolDefinition } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Ask } from "../core/ask.ts";
import type { ResolvedPath, Workspace } from "./workspace.ts";

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
   * The words of which the name of a file below a directory must hold one, in lower case, for `read` of it not to be allowed;
   * only for names of printable ASCII without a long run of spaces. Undefined: any file may be one.
   */
  readDoubts(directory: Pick<ResolvedPath, "absolute" | "pattern">): readonly string[] | undefined;
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
  /** What plugins add to the environment of commands that run in a directory. */
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
  /** The directories outside the workspace that this call was allowed to touch, canonical. */
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

/** Form in which a tool takes a change of files: as a patch, or as text to replace or write. */
export type ChangeForm = "patch" | "replace";

/** A tool as the engine sees it: frozen, and opaque. Its input is decoded before `plan` and `execute`, which get only what `decode` returned. */
export interface Tool {
  readonly name: string;
  readonly definition: ToolDefinition;
  readonly idempotent: boolean;
  readonly providers: readonly string[] | undefined;
  readonly experimental: boolean;
  /** Permissions that its calls can ask; undefined if it declares none: then anything, first of all its own name. */
  readonly permissions: readonly string[] | undefined;
  readonly changeForm: ChangeForm | undefined;
  /** What grants are bound to: input schema and permission version. */
  readonly permissionBinding: string;
  readonly keep: { end: "head" | "tail" | "both"; lines: number; bytes: number };
  /** Throws `InvalidInput` with the path of each field that does not fit. */
  decode(input: JsonObject): unknown;
  plan(input: unknown, ctx: PlanContext): Promise<Plan>;
  /** Throws `InvalidOutput` if the result does not fit the tool's schema. */
  execute(input: unknown, plan: Plan, ctx: ToolContext): Promise<ToolResult>;
}
