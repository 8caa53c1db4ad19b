import type { JsonObject, JsonValue, MessageInitShape } from "@bufbuild/protobuf";
import type { HostTrafficSchema, QuestionAnswer, QuestionSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { FilePart, HiddenPathsSchema, PreviewSchema, ToolExecutor } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { ToolDefinition } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Ask } from "../core/ask.ts";
import type { Durability, DurableState } from "../core/durability.ts";
import type { FileRules } from "../policy/file-rules.ts";
import type { ResolvedPath } from "./path-asks.ts";
import type { RemoteBodies, RemoteRun } from "./remote.ts";
import type { Workspace } from "./workspace.ts";

/** The verdict of the rules on an ask. */
export interface Judgement {
  action: "allow" | "ask" | "deny";
  /** The reason, for people. */
  reason: string;
  /** The pattern of the rule that decided, if one did. */
  rule?: string;
}

/** Evaluates rules for an ask. It asks no approver, and grants do not count. */
export interface Judge {
  (ask: Ask): Judgement;
  /**
   * Returns lower-case substrings that identify possibly restricted files below a directory: rules allow to read a file whose
   * name contains none of them. Holds only for names of printable ASCII without a long run of spaces. Undefined: any file may
   * be restricted.
   */
  restrictedNameHints(directory: Pick<ResolvedPath, "absolute" | "pattern">): readonly string[] | undefined;
  /** Returns the rules themselves, for the sandbox. */
  fileRules(): FileRules;
}

/** The intended effect of a call. It depends on the input and on resolved paths alone, so no content of a file makes it fail. */
export interface Plan {
  /** One short line for people. */
  title: string;
  asks: readonly Ask[];
  /** Questions to a person; their permission request is that of the plan's ask of the permission `question`. */
  questions?: readonly MessageInitShape<typeof QuestionSchema>[];
  /** Files to whose content an approval is bound: those that will change, and programs that will run. */
  binds?: readonly Pick<ResolvedPath, "absolute">[];
  /** The working directory, if there is one; an approval is bound to it. */
  cwd?: string;
  /** Additional environment variables of the call's commands; an approval is bound to them. */
  env?: Readonly<Record<string, string>>;
  /** Search path for the programs of its commands, as in PATH; an approval is bound to the programs that are found. */
  searchPath?: string;
  /** SHA-256 of text that the plan has read and the body will return, or of settings that the body uses; an approval is bound to it. */
  contentDigest?: string;
  /** Files whose existence or content `inspect` reveals; it is skipped if rules do not allow to read one of them. */
  reveals?: readonly ResolvedPath[];
  /**
   * Checks that the call can succeed: throws `ToolFailure` if not. Returns the preview, which is made only if it is shown. It has
   * no side effects and may be repeated.
   */
  inspect?(): Promise<Inspection>;
  /** Session in which the subagent that the call starts makes its calls. */
  childSession?: string;
  /** Maximum duration of the run, where the input decides it. */
  timeoutMs?: number;
  /** A worker has to plan the call, and none has: the call waits for one. */
  waitsForWorker?: boolean;
}

/** The result of a tool's own checks. */
export interface Inspection {
  preview?(): MessageInitShape<typeof PreviewSchema>;
  /** Finds what the call's command will not see; undefined if that is nothing or not known. */
  hidden?(call: CallPaths): Promise<MessageInitShape<typeof HiddenPathsSchema> | undefined>;
}

/** The paths that a call may touch once what it asks is allowed. */
export type CallPaths = Pick<ToolContext, "outside" | "files">;

/** Context of planning a call. */
export interface PlanContext {
  sessionId: string;
  callId: string;
  agent: string;
  workspace: Workspace;
  /** Returns the variables that plugins add to the environment of commands in a directory. */
  environment(cwd: string): Promise<Record<string, string>>;
  /** Files that this session tree has read: canonical path → SHA-256 (hex) of the content. */
  reads: { get(path: string): Promise<string | undefined> };
  /** Evaluates rules for things that the call touches in addition to its asks. */
  judge: Judge;
}

/** Context in which ListTools offers a tool to an agent. */
export interface OfferContext {
  agent: string;
  /** Owner of the session, or the principal that asks for a list without a session. */
  principal: string;
  /** The name of the workspace root. */
  workspace: string;
  /** Evaluates rules for what the tool offers. */
  judge: Judge;
}

/** A position in a distributed trace, as in the headers of W3C Trace Context. */
export interface TraceContext {
  traceparent: string;
  tracestate?: string;
}

/** Context of running a call, the same for every tool. */
export interface ToolContext extends Omit<PlanContext, "environment" | "reads"> {
  messageId: string;
  /** The calling model, as the caller names it; empty strings if it does not. */
  model: { providerId: string; modelId: string };
  /** Aborted on cancel, at the call's deadline and when the replica loses the call; the reason names the cause. */
  signal: AbortSignal;
  /** The person's answers to the questions of the plan, one for each; empty if it has none. */
  answers: readonly QuestionAnswer[];
  /** The root of the session tree. */
  rootSessionId: string;
  /** Canonical paths of the directories outside the workspace that this call may touch. */
  outside: readonly string[];
  /** Canonical paths of the files for which this call asked and which it may read, or edit. */
  files: { read: readonly string[]; edit: readonly string[] };
  /** For a command line that the sandbox contains: the addresses of hosts that were allowed before the start; no one is asked for others. */
  heldHosts?: readonly string[];
  reads: {
    get(path: string): Promise<string | undefined>;
    /** Records that the session tree has seen this content. */
    record(path: string, sha256: string): Promise<void>;
  };
  /** Reports files that the call is about to write or remove, so that an atomic batch can restore them. Await it first. */
  beforeWrite(writes: readonly FileWrite[]): Promise<void>;
  /** JSON values that tools store for this session, by name; a subagent's session has separate ones. */
  state: {
    get(name: string): Promise<JsonValue | undefined>;
    set(name: string, value: JsonValue): Promise<void>;
  };
  /** Stored outputs of this session tree, by the ID in `toolgate-output:ID`. */
  outputs: {
    read(id: string, offset: number, limit: number): Promise<{ data: Uint8Array; total: number } | undefined>;
    /** Stores bytes as an output of the session tree and returns its ID. */
    store(data: Uint8Array): Promise<string>;
    remove(id: string): Promise<void>;
  };
  /** Replaces the title and metadata that watchers see. */
  metadata(update: { title?: string; metadata?: JsonObject }): void;
  /** Appends to the call's output; bytes are copied. Await it: it resolves when the buffer has capacity for more. */
  output(chunk: string | Uint8Array): Promise<void>;
  /**
   * Makes calls in this session at the same time, for the same principal; policy is evaluated for each like for any other call.
   * With `atomic` none starts before all are allowed, and if one is refused none starts; `changes` then observes the files that
   * they change. The deadline is paused meanwhile. A body that goes on elsewhere finds its calls again by their `key`.
   */
  calls(
    children: readonly ChildCall[],
    options: { atomic: boolean; changes?: ChangeObserver; key?: string },
  ): Promise<ChildResult[]>;
  /**
   * Asks while the tool runs; throws if it is refused. Prefer asks in `plan`: this one is lost with its replica, unless the body
   * goes on elsewhere and asks again with the same `key`.
   */
  ask(ask: Ask, preview?: MessageInitShape<typeof PreviewSchema>, key?: string): Promise<void>;
  /** Asks a person questions while the tool runs, and returns an answer for each; undefined if the person refuses. */
  question(
    questions: readonly MessageInitShape<typeof QuestionSchema>[],
  ): Promise<readonly QuestionAnswer[] | undefined>;
  /** Adds what the call sent to hosts and received to the audit; written with the end of the call. */
  recordTraffic(traffic: readonly MessageInitShape<typeof HostTrafficSchema>[]): void;
  /** For a durable tool. */
  durable: DurableState;
  /** For a tool whose bodies run in workers. */
  remote?: RemoteRun;
  /** The caller's metadata for tools. */
  extra: JsonObject;
  /** Trace of the run, to send along with requests. Absent if tracing is off. */
  trace?: TraceContext;
}

/** Observes the files that atomic calls of tools with a `changeForm` change. */
export interface ChangeObserver {
  /** Called when all calls may start, with the canonical paths of the files that they will change. If it throws, none starts. */
  beforeStart(files: readonly string[]): Promise<void>;
  /** Called before a call writes or removes files; resolves when that is stored. */
  beforeWrite(writes: readonly FileWrite[]): Promise<void>;
}

/** A file that a call is about to write or remove. */
export interface FileWrite {
  /** Canonical path. */
  path: string;
  /** SHA-256 (hex) of its new content; undefined if it is removed. */
  sha256: string | undefined;
}

/** A call that a tool makes. */
export interface ChildCall {
  tool: string;
  input: JsonObject;
}

/** The result of a call that a tool made. */
export interface ChildResult {
  callId: string;
  status: "completed" | "error";
  title: string;
  /** The output or the error message. */
  text: string;
  /** Failure of a completed call's command, such as `exit code 3`; absent if it succeeded. */
  commandFailure?: string;
  /** True if the call was started and may have changed something. */
  mayHaveEffects?: boolean;
  /** Metadata of a completed call. */
  metadata?: JsonObject;
  /** Files that the call returned. */
  attachments: readonly FilePart[];
}

/** A file that a tool returns. */
export interface Attachment {
  mime: string;
  filename?: string;
  data: Uint8Array;
}

/** The result of a tool. */
export interface ToolResult {
  /** Replaces the plan's title. */
  title?: string;
  /** The whole text; default: everything written with `output()`. The service truncates it, not the tool. */
  output?: string;
  /** Appended after the truncated output, for facts that the model must not miss. */
  note?: string;
  metadata?: JsonObject;
  /** At most 5 MiB each. `FilePart`s of another call are passed on unchanged. */
  attachments?: readonly (Attachment | FilePart)[];
  /** The encoded output of a tool that has an output schema; `defineTool` sets it. */
  structured?: JsonValue;
}

/** Form in which a tool takes a change of files: as a patch, or as text to replace or write. */
export type ChangeForm = "patch" | "replace";

/** A tool as `defineTool` returns it. Its schemas and its body are no fields: it serves only where it is registered. */
export interface DefinedTool {
  readonly [defined]: true;
}
declare const defined: unique symbol;

/** A tool under its name as the engine sees it, frozen. `plan` and `execute` get only input that `decode` returned. */
export interface Tool extends DefinedTool {
  readonly name: string;
  readonly definition: ToolDefinition;
  readonly idempotent: boolean;
  /**
   * Set for a body that may be entered again: it only makes calls, by `ctx.calls`, which are found again and none of which runs
   * twice, or it waits for work that `ctx.durable` names.
   */
  readonly durable: Durability | undefined;
  /** Set for a tool whose bodies run in workers: the engine reserves capacity before the start mark, and names the run in it. */
  readonly remote: RemoteBodies | undefined;
  /** The executor that calls record; undefined for the service and for workers, whose calls name theirs at the start. */
  readonly executor: ToolExecutor | undefined;
  readonly providers: readonly string[] | undefined;
  readonly experimental: boolean;
  /** Permissions that its calls can ask; undefined if it declares none: then anything, first of all its own name. */
  readonly permissions: readonly string[] | undefined;
  readonly changeForm: ChangeForm | undefined;
  /** Digest of input schema and permission version; grants are bound to it. */
  readonly permissionBinding: string;
  /** Digest of these and of the version: a definition with the same one enters the body of a durable call again. */
  readonly bodyBinding: string;
  readonly keep: { end: "head" | "tail" | "both"; lines: number; bytes: number };
  /** Returns text that ListTools appends to the description; `definition` and its ID do not cover it. */
  offer?(ctx: OfferContext): Promise<string>;
  /** Returns the description for an agent, in place of that of `definition`; undefined if the tool is not offered to it. */
  describe?(ctx: OfferContext): Promise<string | undefined>;
  /** Parses input; throws `InvalidInput` with the path of each field that does not fit. */
  decode(input: JsonObject): unknown;
  plan(input: unknown, ctx: PlanContext): Promise<Plan>;
  /** Throws `InvalidOutput` if the result does not fit the tool's schema. */
  execute(input: unknown, plan: Plan, ctx: ToolContext): Promise<ToolResult>;
}
