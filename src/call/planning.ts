import { createHash } from "node:crypto";
import { readdir, stat } from "node:fs/promises";
import { create, type JsonObject, type MessageInitShape } from "@bufbuild/protobuf";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type Preview, PreviewSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { JudgedBy, Verdict } from "../approval/judge-asks.ts";
import type { Permissions } from "../approval/permissions.ts";
import type { Ask } from "../core/ask.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import { visible } from "../policy/display.ts";
import type { ExpandedAsk, Layers } from "../policy/model.ts";
import type { Policy } from "../policy/policy.ts";
import { strictest } from "../policy/policy.ts";
import type { ReadPlace } from "../policy/read-doubts.ts";
import type { Entry } from "../policy/shell/glob.ts";
import type { Subject } from "../policy/subject.ts";
import { ChangedAfterApproval, ToolFailure } from "../tool/errors.ts";
import { doubtAbout } from "../tool/path-asks.ts";
import type { Judge, Judgement, Plan, PlanContext, Tool } from "../tool/tool.ts";
import { createHashes, findProgram } from "./bound-files.ts";
import type { OpenSession } from "./sessions.ts";

/** What a call would do, and whether it may. */
export interface Judged {
  plan: Plan;
  verdict: Verdict;
  /** The folders outside the workspace that are asked for. */
  outside: readonly string[];
}

/** What is seen before a call runs. */
export interface Inspected {
  /** What will happen; absent where showing it would reveal what `read` does not allow, and where it is denied. */
  preview?(): Preview;
  /** The check of the tool that fails. */
  problem?: ToolFailure;
}

const planningMs = 30_000;
/** The third call in a row for the same thing is asked about: whoever makes it may be going round in circles. */
export const maxRepeats = 1;

export type Planning = ReturnType<typeof createPlanning>;

/** Plans and judges: no side effects, may be repeated. */
export function createPlanning({
  permissions,
  policy,
  layersFor,
  policyDigest,
}: {
  permissions: Permissions;
  policy: Policy;
  layersFor(subject: Subject): Layers;
  /** Names the rules that all is judged by. */
  policyDigest: string;
}) {
  /** First title, targets and asks, from the input and path resolution alone; then the decision. */
  async function judge(
    tool: Tool,
    input: unknown,
    ctx: PlanContext,
    subject: Subject,
    repeats: number,
    by: JudgedBy = {},
  ): Promise<Judged> {
    const layers = by.layers ?? layersFor(subject);
    const bare = await within(planningMs, tool.plan(input, ctx));
    const own = { ...bare, title: visible(bare.title) };
    const planned = repeats > maxRepeats ? { ...own, asks: [...own.asks, loopAsk(tool, repeats)] } : own;
    const files = {
      async resolve(path: string, cwd: string) {
        const place = await ctx.workspace.resolve(path.startsWith("/") ? path : `${cwd}/${path}`);
        return { ...place, ...doubtAbout(place) };
      },
      list,
    };
    const questions: ExpandedAsk[] = [];
    for (const ask of planned.asks) questions.push(...(await within(planningMs, policy.expand(ask, layers, files))));
    const outside = questions.filter(({ permission }) => permission === "external_directory");
    const verdict = await permissions.decide(questions, subject, { ...by, layers });
    return {
      // Only an approval is bound to what is run.
      plan: verdict.action === PermissionAction.ASK ? await bound(planned, questions) : planned,
      verdict,
      outside: outside.flatMap(({ paths }) => paths ?? []),
    };
  }

  /** A plan with the scripts and programs that its commands would run. */
  async function bound(plan: Plan, questions: readonly ExpandedAsk[]): Promise<Plan> {
    const scripts = questions.flatMap(({ runs = [] }) => runs);
    const names = questions.flatMap(({ programs = [] }) => programs);
    const programs = await Promise.all(names.map((name) => findProgram(name, plan.searchPath ?? "")));
    const run = [...scripts, ...programs.filter((path) => path !== undefined)].map((absolute) => ({ absolute }));
    return run.length === 0 ? plan : { ...plan, binds: [...(plan.binds ?? []), ...run] };
  }

  /** Then the tool's preview and checks, unless it is denied or they would reveal what may not be read. */
  async function inspect({ plan, verdict }: Judged, layers: Layers): Promise<Inspected> {
    if (verdict.action === PermissionAction.DENY || !plan.inspect || !mayReveal(plan, layers)) return {};
    try {
      const { preview } = await within(planningMs, plan.inspect());
      return preview ? { preview: () => shown(preview()) } : {};
    } catch (cause) {
      if (cause instanceof ToolFailure) return { problem: cause };
      // What was looked at was swapped meanwhile: nothing was approved yet, so it is a failing check like others.
      if (cause instanceof ChangedAfterApproval) return { problem: new ToolFailure(cause.message, { cause }) };
      throw cause;
    }
  }

  function mayReveal(plan: Plan, layers: Layers): boolean {
    return (plan.reveals ?? []).every((path) => {
      if (path.external) return false;
      const question = { permission: "read", patterns: [path.pattern], paths: [path.absolute] };
      return strictest(policy.judge(question, layers)) === PermissionAction.ALLOW;
    });
  }

  /**
   * What an approval is bound to: the tool's definition, the canonical input (which hooks have rewritten by then), workspace
   * and working directory with its inode, the environment, the content of the files that will change or be run, and the rules.
   */
  async function digestOf(
    tool: Tool,
    input: JsonObject,
    plan: Plan,
    { workspace }: Pick<OpenSession, "workspace">,
  ): Promise<string> {
    const files: JsonObject = {};
    for (const { absolute } of plan.binds ?? []) files[absolute] = await hashes.of(absolute);
    const bound = {
      definition: tool.definition.definitionId,
      input,
      workspace: workspace.directory,
      cwd: plan.cwd === undefined ? null : [plan.cwd, await inodeOf(plan.cwd)],
      env: { ...plan.env },
      files,
      asks: plan.asks.map(({ permission, patterns }) => ({ permission, patterns: [...patterns] })),
      policy: policyDigest,
    };
    return createHash("sha256").update(canonicalJson(bound)).digest("hex");
  }

  const hashes = createHashes();

  return {
    judge,
    inspect,
    digestOf,
    judging: (layers: Layers) => judging(policy, layers),
  };
}

function loopAsk(tool: Tool, repeats: number): Ask {
  return { permission: "doom_loop", patterns: [tool.name], metadata: { tool: tool.name, repeats } };
}

/** The rules of a call, as its tool may question them. */
export function judging(policy: Pick<Policy, "judge" | "readDoubts">, layers: Layers): Judge {
  const judge = (ask: Ask): Judgement => {
    const decisions = policy.judge(ask, layers);
    const action = strictest(decisions);
    const { reason = "", rule } = decisions.find((decision) => decision.action === action) ?? {};
    return { action: wordFor(action), reason, ...(rule && { rule: rule.pattern }) };
  };
  return Object.assign(judge, { readDoubts: (place: ReadPlace) => policy.readDoubts(place, layers) });
}

function wordFor(action: PermissionAction): Judgement["action"] {
  if (action === PermissionAction.ALLOW) return "allow";
  return action === PermissionAction.DENY ? "deny" : "ask";
}

const maxPreview = 128 * 1024;

/** A preview with as much of the diff as an ask holds. */
export function beginning(preview: Preview, url = ""): Preview {
  const bytes = Buffer.from(preview.diff);
  if (bytes.length <= maxPreview) return preview;
  return { ...preview, diff: bytes.subarray(0, bytes.lastIndexOf(10, maxPreview)).toString(), url };
}

/** A preview as people may be shown it. */
function shown({ diff = "", command = "", paths = [], hosts = [] }: MessageInitShape<typeof PreviewSchema>): Preview {
  return create(PreviewSchema, {
    diff: visible(diff),
    command: visible(command),
    paths: paths.map(visible),
    hosts: hosts.map(visible),
  });
}

/** What is in a folder; nothing if it is none. */
async function list(folder: string): Promise<Entry[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  return entries.map((entry) => ({
    name: entry.name,
    isDirectory: entry.isDirectory(),
    isLink: entry.isSymbolicLink(),
  }));
}

/** Which folder a path leads to now; another one under the same name is another one. */
async function inodeOf(path: string): Promise<string> {
  return await stat(path, { bigint: true }).then(
    ({ ino }) => String(ino),
    () => "none",
  );
}

async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new ToolFailure(`Planning the call took longer than ${ms / 1000} s.`)), ms);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
