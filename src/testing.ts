/** Test kit for tools: `import { callTool, openTestWorkspace, planCall } from "toolgate/testing"`. */
import { randomUUID } from "node:crypto";
import { mkdir, mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { homedir, tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { create, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import { PermissionLayer, QuestionAnswerSchema } from "../gen/opencode/tool/v1/permission_pb.ts";
import { resolvePlanPaths } from "./call/ask-paths.ts";
import { createToolJudge } from "./call/prepare.ts";
import type { Ask } from "./core/ask.ts";
import type { DurableState } from "./core/durability.ts";
import { enginePermissions } from "./policy/known-permissions.ts";
import { defaultRules } from "./policy/layers.ts";
import { createPolicy } from "./policy/policy.ts";
import { fromConfig, type RuleConfig } from "./policy/rules.ts";
import { boundTool, opaqueTool } from "./tool/define-tool.ts";
import { toolOf } from "./tool/foreign.ts";
import type {
  ChildCall,
  ChildResult,
  DefinedTool,
  Judge,
  Plan,
  PlanContext,
  Tool,
  ToolContext,
  ToolResult,
} from "./tool/tool.ts";
import { openWorkspace, type Workspace } from "./tool/workspace.ts";

/** A workspace in a temporary directory, and what the session of its calls remembers. */
export interface TestWorkspace {
  readonly workspace: Workspace;
  /** Canonical path of the workspace. */
  readonly directory: string;
  /** Canonical path of a directory outside the workspace. */
  readonly outside: string;
  /** Files that were recorded as read: canonical path → SHA-256 (hex). */
  readonly reads: Map<string, string>;
  /** Stored outputs of earlier calls, by ID. */
  readonly outputs: Map<string, Uint8Array>;
  /** Values that tools stored for the session. */
  readonly state: Map<string, JsonValue>;
  /** Evaluates rules for `ctx.judge`; at first everything is allowed. */
  judge: Judge;
  /** Variables that plugins add to commands; at first none. */
  environment: Record<string, string>;
  /** Removes both directories. */
  remove(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Creates a workspace with these files in it: relative path → content. */
export async function openTestWorkspace(files: Readonly<Record<string, string>> = {}): Promise<TestWorkspace> {
  const root = await realpath(await mkdtemp(join(tmpdir(), "toolgate-test-")));
  const directory = join(root, "work");
  const outside = join(root, "other");
  await mkdir(directory);
  await mkdir(outside);
  for (const [path, content] of Object.entries(files)) {
    await mkdir(dirname(join(directory, path)), { recursive: true });
    await writeFile(join(directory, path), content);
  }
  const remove = () => rm(root, { recursive: true, force: true });
  return {
    workspace: await openWorkspace("default", directory),
    directory,
    outside,
    reads: new Map(),
    outputs: new Map(),
    state: new Map(),
    environment: {},
    judge: judgeBy("allow"),
    remove,
    [Symbol.asyncDispose]: remove,
  };
}

/** Evaluates rules, written as in `[permission]`, after the built-in ones, as the service does. */
export function judgeBy(rules: RuleConfig): Judge {
  const policy = createPolicy({ guard: { dataDirectory: "/nowhere" }, home: homedir() });
  const config = { layer: PermissionLayer.CONFIG, rules: fromConfig(rules, homedir()) };
  return createToolJudge(policy, () => ({
    wide: [{ layer: PermissionLayer.DEFAULTS, rules: defaultRules }, config],
    narrow: [],
  }));
}

/** Makes a tool of an export of a tool file, as the service does: of `defineTool`, `tool()` or `Tool.define`. */
export async function toolFrom(name: string, exported: unknown): Promise<DefinedTool> {
  const tool = await toolOf(name, exported, "test");
  if (!tool)
    throw new Error(`${name} is not a tool: export defineTool({ ... }) or tool({ description, args, execute })`);
  return opaqueTool(tool);
}

/** A call that was decoded and planned: what it asks, and how to run it. */
export interface PlannedCall {
  readonly plan: Plan;
  run(options?: RunOptions): Promise<RunResult>;
}

/** Conditions of a run. */
export interface RunOptions {
  /** Abort it to cancel the call. */
  signal?: AbortSignal;
  /** Directories outside the workspace that the call may touch; default none. */
  outside?: readonly string[];
  /** Canonical paths of files that the call was allowed, by permission; default none. */
  files?: Partial<ToolContext["files"]>;
  /** A person's answers to the questions of the plan, a list of values for each; default none. */
  answers?: readonly (readonly string[])[];
  /** Observes metadata that the tool shows while it runs. */
  onMetadata?(metadata: JsonObject): void;
  /** Observes output as it comes: everything that was written so far. The tool waits for it. */
  onOutput?(text: string): Promise<void> | void;
  /** Answers an ask of the body: throw to refuse it. Default: allowed. */
  onAsk?(ask: Ask): Promise<void> | void;
  /** Answers calls that the body makes. Default: none return anything. */
  onCalls?(children: readonly ChildCall[]): Promise<ChildResult[]> | ChildResult[];
}

/** The result of a run with everything that the tool emitted on the way. */
export interface RunResult extends ToolResult {
  /** Text that was written with `ctx.output`. */
  written: string;
  /** Updates of `ctx.metadata`, in order. */
  progress: { title?: string; metadata?: JsonObject }[];
  /** Asks of `ctx.ask`, in order. */
  asked: Ask[];
}

/**
 * Decodes input and plans a call, as the service does. Throws `InvalidInput` if the input does not fit, and an error if the
 * plan asks for a permission that the tool does not declare.
 */
export async function planCall(site: TestWorkspace, defined: DefinedTool, input: JsonObject): Promise<PlannedCall> {
  const tool = boundTool(defined);
  const shared = {
    sessionId: "ses_test",
    callId: `call-${randomUUID()}`,
    agent: "build",
    workspace: site.workspace,
    judge: site.judge,
  };
  const reads: PlanContext["reads"] = { get: async (path) => site.reads.get(path) };
  const decoded = tool.decode(input);
  const planned = await tool.plan(decoded, { ...shared, reads, environment: async () => site.environment });
  const plan = await resolvePlanPaths(planned, site.workspace);
  for (const ask of plan.asks) checkDeclared(tool, ask);
  return {
    plan,
    async run(options = {}) {
      const { context, emitted } = contextFor(site, tool, options);
      const result = await tool.execute(decoded, plan, { ...shared, ...context });
      return { ...result, ...emitted() };
    },
  };
}

/** Plans, inspects and runs a call, as if everything that it asks were allowed. */
export async function callTool(
  site: TestWorkspace,
  tool: DefinedTool,
  input: JsonObject,
  options?: RunOptions,
): Promise<RunResult> {
  const call = await planCall(site, tool, input);
  await call.plan.inspect?.();
  return await call.run(options);
}

function checkDeclared({ name, permissions }: Tool, { permission }: Ask): void {
  // A command line may read and edit files, and reach hosts.
  if (permissions?.includes("bash") && ["read", "edit", "webfetch"].includes(permission)) return;
  if (!permissions || permissions.includes(permission) || enginePermissions.includes(permission)) return;
  throw new Error(`the tool ${name} asks "${permission}", which it does not declare: add it to permissions`);
}

/** Creates the part of a context that a run observes, and a function that returns what was emitted through it. */
function contextFor(
  site: TestWorkspace,
  tool: Tool,
  {
    signal = new AbortController().signal,
    outside = [],
    files = {},
    answers = [],
    onMetadata,
    onOutput,
    onAsk,
    onCalls,
  }: RunOptions,
) {
  const chunks: Uint8Array[] = [];
  const written = () => Buffer.concat(chunks).toString();
  const progress: RunResult["progress"] = [];
  const asked: Ask[] = [];
  const context: Omit<ToolContext, "sessionId" | "callId" | "agent" | "workspace" | "judge"> = {
    messageId: "msg_test",
    model: { providerId: "", modelId: "" },
    signal,
    answers: answers.map((values) => create(QuestionAnswerSchema, { values: [...values] })),
    rootSessionId: "ses_test",
    outside,
    files: { read: [], edit: [], ...files },
    reads: {
      get: async (path) => site.reads.get(path),
      async record(path, sha256) {
        site.reads.set(path, sha256);
      },
    },
    beforeWrite: async () => {},
    durable: durableInMemory(),
    state: {
      get: async (name) => site.state.get(name),
      async set(name, value) {
        site.state.set(name, value);
      },
    },
    outputs: {
      async read(id, offset, limit) {
        const stored = site.outputs.get(id);
        return stored && { data: stored.subarray(offset, offset + limit), total: stored.length };
      },
      async store(data) {
        const id = `out_${site.outputs.size + 1}`;
        site.outputs.set(id, data);
        return id;
      },
      async remove(id) {
        site.outputs.delete(id);
      },
    },
    metadata(update) {
      progress.push(update);
      onMetadata?.(update.metadata ?? {});
    },
    async output(chunk) {
      chunks.push(typeof chunk === "string" ? Buffer.from(chunk) : Uint8Array.from(chunk));
      await onOutput?.(written());
    },
    calls: async (children) => (await onCalls?.(children)) ?? [],
    async ask(ask) {
      checkDeclared(tool, ask);
      asked.push(ask);
      await onAsk?.(ask);
    },
    question: async () => undefined,
    recordTraffic: () => {},
    extra: {},
  };
  return { context, emitted: () => ({ written: written(), progress, asked }) };
}

/** Returns the state of a durable call that is not resumed. */
function durableInMemory(): DurableState {
  let memo: JsonValue | undefined;
  return {
    isResumed: false,
    get memo() {
      return memo;
    },
    async store(value) {
      memo = value;
    },
    isLeft: async () => false,
  };
}
