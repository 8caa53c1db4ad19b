import { mkdir, mkdtemp, realpath, rm } from "node:fs/promises";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { judging } from "../../src/call/planning.ts";
import { defaultRules } from "../../src/policy/default-rules.ts";
import { createPolicy } from "../../src/policy/policy.ts";
import { fromConfig, type RuleConfig } from "../../src/policy/rules.ts";
import type { Plan, PlanContext, Tool, ToolContext, ToolResult } from "../../src/tool/tool.ts";
import { openWorkspace, type Workspace } from "../../src/tool/workspace.ts";

/** A workspace in a folder of its own, with a folder beside it that is outside. */
export interface Site {
  workspace: Workspace;
  /** The workspace's folder. */
  inside: string;
  outside: string;
  /** What was recorded as read: canonical path → SHA-256. */
  reads: Map<string, string>;
  /** Stored outputs by id. */
  outputs: Map<string, Uint8Array>;
  /** What tools keep for the session. */
  state: Map<string, JsonValue>;
  /** What rules say of what a tool touches besides; at first that everything is allowed. */
  judge: PlanContext["judge"];
  remove(): Promise<void>;
}

export async function openSite(): Promise<Site> {
  const folder = await realpath(await mkdtemp(join(tmpdir(), "toolgate-test-")));
  const inside = join(folder, "work");
  const outside = join(folder, "other");
  await mkdir(inside);
  await mkdir(outside);
  return {
    workspace: await openWorkspace("default", inside),
    inside,
    outside,
    reads: new Map(),
    outputs: new Map(),
    state: new Map(),
    judge: judgeBy("allow"),
    remove: () => rm(folder, { recursive: true, force: true }),
  };
}

/** A planned call: what the engine would ask and show, and how it would run. */
export interface PlannedCall {
  plan: Plan;
  run(options?: RunOptions): Promise<RunResult>;
}

export interface RunOptions {
  signal?: AbortSignal;
  /** The folders outside the workspace that the call was allowed to touch. */
  outside?: readonly string[];
  /** Called with the metadata that is shown while the tool runs. */
  onMetadata?(metadata: JsonObject): void;
  /** Called with what was written so far, at each piece of output. */
  onOutput?(text: string): Promise<void> | void;
}

/** The result, and everything that the tool wrote while it ran. */
export type RunResult = ToolResult & { written: string };

/** Judges by these rules, as the engine does. */
export function judgeBy(rules: RuleConfig): PlanContext["judge"] {
  const policy = createPolicy({ guard: { dataDirectory: "/nowhere" }, home: homedir() });
  const config = { layer: PermissionLayer.CONFIG, rules: fromConfig(rules, homedir()) };
  return judging(policy, { wide: [{ layer: PermissionLayer.DEFAULTS, rules: defaultRules }, config], narrow: [] });
}

let calls = 0;

/** Decodes and plans a call as the engine does. */
export async function planCall(site: Site, tool: Tool, input: JsonObject): Promise<PlannedCall> {
  calls += 1;
  const shared = {
    sessionId: "ses_test",
    callId: `call-${process.pid}-${calls}`,
    agent: "build",
    workspace: site.workspace,
    judge: site.judge,
  };
  const reads: PlanContext["reads"] = { get: async (path) => site.reads.get(path) };
  const decoded = tool.decode(input);
  const plan = await tool.plan(decoded, { ...shared, reads, environment: async () => ({}) });
  return {
    plan,
    async run({ signal = new AbortController().signal, outside = [], onMetadata, onOutput } = {}) {
      const chunks: Uint8Array[] = [];
      const ctx: ToolContext = {
        ...shared,
        messageId: "msg_test",
        model: { providerId: "", modelId: "" },
        signal,
        outside,
        reads: {
          ...reads,
          async record(path, sha256) {
            site.reads.set(path, sha256);
          },
        },
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
        },
        metadata: ({ metadata = {} }) => onMetadata?.(metadata),
        async output(chunk) {
          chunks.push(Buffer.from(chunk));
          await onOutput?.(Buffer.concat(chunks).toString());
        },
        calls: async () => [],
        async ask() {},
        extra: {},
      };
      const result = await tool.execute(decoded, plan, ctx);
      return { ...result, written: Buffer.concat(chunks).toString() };
    },
  };
}

/** Plans, inspects and runs a call: what happens inside the workspace when everything is allowed. */
export async function callTool(site: Site, tool: Tool, input: JsonObject, options?: RunOptions): Promise<RunResult> {
  const call = await planCall(site, tool, input);
  await call.plan.inspect?.();
  return await call.run(options);
}
