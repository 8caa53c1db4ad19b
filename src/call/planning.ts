import { readdir } from "node:fs/promises";
import type { JsonObject } from "@bufbuild/protobuf";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { JudgedBy, Verdict } from "../approval/judge-asks.ts";
import type { Permissions } from "../approval/permissions.ts";
import type { Ask } from "../core/ask.ts";
import { trackedFiles } from "../core/tracked-files.ts";
import { visible } from "../core/visible.ts";
import type { LayersFor } from "../policy/layers.ts";
import { createMatchSteps, stepsPerMs } from "../policy/match-steps.ts";
import type { ExpandedAsk, Layers } from "../policy/model.ts";
import type { Policy } from "../policy/policy.ts";
import { readAsTexts } from "../policy/shell/command.ts";
import type { GitNames } from "../policy/shell/git-names.ts";
import type { Entry } from "../policy/shell/glob.ts";
import type { Subject } from "../policy/subject.ts";
import { ToolFailure } from "../tool/errors.ts";
import { cautionFor } from "../tool/path-asks.ts";
import type { Plan, PlanContext, Tool } from "../tool/tool.ts";
import { type PathResolver, rememberPaths, resolvePlanPaths } from "./ask-paths.ts";
import { createFileHashes, type FileHashes, findProgram } from "./bound-files.ts";
import type { LineAnalysis } from "./line-analysis.ts";

/** Dependencies of planning and judging. */
export interface PlanningParts {
  /** Reads command lines before the policy judges them. */
  lines: LineAnalysis;
  permissions: Permissions;
  policy: Policy;
  layersFor(subject: LayersFor): Layers;
  /** Finds the names of the objects in a repository; absent: only the work tree is judged. */
  gitNames?(top: string): Promise<GitNames>;
  /** Checks if the sandbox hides files from the commands of an agent that a tool runs, without one those of bash; absent: from none. */
  confines?(agent: string, tool?: Tool): boolean;
  /** Returns the digest of the configured rules in force. */
  policyDigest(): string;
}

/** State of planning and judging, which has no side effects and may be repeated. */
export interface Planning extends PlanningParts {
  readonly hashes: FileHashes;
}

/** Creates it, with an empty cache of file hashes. */
export function createPlanning(parts: PlanningParts): Planning {
  return { ...parts, hashes: createFileHashes() };
}

/** Plan of a call and the verdict on it. */
export interface Judged {
  plan: Plan;
  verdict: Verdict;
  /** The directories outside the workspace that are asked for. */
  outside: readonly string[];
  /** The files that are asked for, by permission. */
  files: { read: readonly string[]; edit: readonly string[] };
}

/** Repeats up to which a call does not ask for `doom_loop`: the third call in a row for the same thing asks. */
export const maxRepeats = 1;

/** Count of the same requests directly before this one, and the input as the caller sent it. */
export interface Repetition {
  repeats: number;
  request: JsonObject;
}

/** Length of the JSON of an input that an ask shows. */
const maxShownInput = 16_384;
const maxPlanningMs = 30_000;

/** Steps 4 and 5: plans the call, then evaluates policy for everything it asks. */
export async function judgeCall(
  planning: Planning,
  tool: Tool,
  input: unknown,
  ctx: PlanContext,
  subject: Subject,
  {
    repeats,
    request,
    grants,
    layers: collected = planning.layersFor(subject),
    principal,
    onlyRules = false,
  }: JudgedBy & Repetition & { principal: string; onlyRules?: boolean },
): Promise<Judged> {
  const steps = createMatchSteps();
  const layers = { ...collected, steps };
  const { workspace, files } = rememberPaths(ctx.workspace);
  const made = await makePlan(tool, input, { ...ctx, workspace }, { repeats, request });
  const plan = await withinPlanningTime(resolvePlanPaths(made, files));
  const isConfined = !onlyRules && planning.confines?.(ctx.agent, tool);
  const planned = isConfined ? plan.asks.map((ask) => ({ ...ask, isConfined })) : plan.asks;
  const asks = await expandAsks(planning, principal, planned, layers, workspace);
  const pathsOf = (wanted: string) =>
    asks.flatMap(({ permission, paths = [] }) => (permission === wanted ? paths : []));
  const verdict = await planning.permissions.decide(
    asks,
    subject,
    grants === undefined ? { layers } : { layers, grants },
  );
  planning.lines.charge(principal, steps.used() / stepsPerMs);
  return {
    // Only an approval is bound to the programs that run.
    plan: verdict.action === PermissionAction.ASK ? await bindPrograms(plan, asks) : plan,
    verdict,
    outside: pathsOf("external_directory"),
    files: { read: pathsOf("read"), edit: pathsOf("edit") },
  };
}

/** Step 4, plan: title, targets and asks, from the input and path resolution alone. */
export async function makePlan(tool: Tool, input: unknown, ctx: PlanContext, repetition: Repetition): Promise<Plan> {
  const plan = await withinPlanningTime(tool.plan(input, ctx));
  return askAboutLoop({ ...plan, title: visible(plan.title) }, tool, repetition);
}

/** Doom loop: adds an ask to a call that repeats the calls before it, since the model may be going round in circles. */
export function askAboutLoop(plan: Plan, { name }: Pick<Tool, "name">, { repeats, request }: Repetition): Plan {
  if (repeats <= maxRepeats) return plan;
  const metadata = { tool: name, input: shownInput(request), repeats };
  return { ...plan, asks: [...plan.asks, { permission: "doom_loop", patterns: [name], metadata }] };
}

/** Returns the input for the metadata of an ask: a large one as the beginning of its JSON. */
function shownInput(input: JsonObject): JsonObject | string {
  const text = JSON.stringify(input);
  if (text.length <= maxShownInput) return input;
  return `${text.slice(0, maxShownInput)}… (cut: it has ${text.length} characters)`;
}

/** Expands asks whose paths are resolved into everything that they stand for. */
export async function expandAsks(
  { policy, lines, gitNames }: Pick<Planning, "policy" | "lines" | "gitNames">,
  principal: string,
  planned: readonly ExpandedAsk[],
  layers: Layers,
  workspace: PathResolver,
): Promise<ExpandedAsk[]> {
  const files = {
    async resolve(path: string, cwd: string) {
      const resolved = await workspace.resolve(path.startsWith("/") ? path : `${cwd}/${path}`);
      return { ...resolved, ...cautionFor(resolved) };
    },
    list: listDirectory,
    tracked: trackedFiles,
    ...(gitNames && { gitNames }),
  };
  const asks: ExpandedAsk[] = [];
  for (const ask of planned) {
    const read = async ({ isText, patterns }: Ask) =>
      isText ? readAsTexts(patterns) : await lines.read(principal, patterns);
    const readings = ask.permission === "bash" ? { readings: await read(ask) } : undefined;
    asks.push(...(await withinPlanningTime(policy.expand({ ...ask, ...readings }, layers, files))));
  }
  return asks;
}

/** Binds the plan to the scripts and programs that its commands would run. */
async function bindPrograms(plan: Plan, asks: readonly ExpandedAsk[]): Promise<Plan> {
  const scripts = asks.flatMap(({ runs = [] }) => runs);
  const names = asks.flatMap(({ programs = [] }) => programs);
  const programs = await Promise.all(names.map((name) => findProgram(name, plan.searchPath ?? "")));
  const run = [...scripts, ...programs.filter((path) => path !== undefined)].map((absolute) => ({ absolute }));
  return run.length === 0 ? plan : { ...plan, binds: [...(plan.binds ?? []), ...run] };
}

/** Lists a directory; an unreadable or missing one is empty. */
async function listDirectory(directory: string): Promise<Entry[]> {
  const entries = await readdir(directory, { withFileTypes: true }).catch(() => []);
  return entries.map((entry) => ({
    name: entry.name,
    isDirectory: entry.isDirectory(),
    isLink: entry.isSymbolicLink(),
  }));
}

/** Resolves with the work of a tool or of policy; throws `ToolFailure` if it takes longer than planning may. */
export async function withinPlanningTime<T>(work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    const seconds = maxPlanningMs / 1000;
    timer = setTimeout(
      () => reject(new ToolFailure(`Planning the call took longer than ${seconds} s.`)),
      maxPlanningMs,
    );
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
