import { readdir, realpath } from "node:fs/promises";
import { basename, join, relative } from "node:path";
import { create, type JsonObject, type MessageInitShape } from "@bufbuild/protobuf";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  HiddenPathsSchema,
  type PermissionRequest,
  type Preview,
  PreviewSchema,
  type ViewFileSchema,
  ViewFileUse,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { JudgedBy, Verdict } from "../approval/judge-asks.ts";
import type { Permissions } from "../approval/permissions.ts";
import type { Ask } from "../core/ask.ts";
import { trackedFiles } from "../core/tracked-files.ts";
import { visible, visibleLine } from "../core/visible.ts";
import { within } from "../core/within.ts";
import { isForeignPermission } from "../policy/known-permissions.ts";
import type { LayersFor } from "../policy/layers.ts";
import {
  createMatchSteps,
  type ExpandedAsk,
  type Layers,
  type Subject,
  stepsPerMs,
  type Wall,
} from "../policy/model.ts";
import { strictest } from "../policy/opinion.ts";
import type { Policy } from "../policy/policy.ts";
import { mergeRisks } from "../policy/risk.ts";
import type { CodeUse, PlacedCode } from "../policy/shell/code.ts";
import { type Readings, readAsTexts } from "../policy/shell/command.ts";
import type { Entry } from "../policy/shell/glob.ts";
import type { Files, GitNames } from "../policy/shell/touched.ts";
import { ChangedAfterApproval, ToolFailure } from "../tool/errors.ts";
import { cautionFor, type ResolvedPath } from "../tool/path-asks.ts";
import type { Plan, PlanContext, Tool } from "../tool/tool.ts";
import { judgedWorkspace } from "../tool/workspace.ts";
import { type PathResolver, rememberPaths, resolvePlanPaths } from "./ask-paths.ts";
import {
  type CodeText,
  createFileHashes,
  type FileHashes,
  type FileTree,
  findProgram,
  readTree,
  risksOfCode,
  withScripts,
} from "./bound-files.ts";
import { createRecorder, decisionFacts, type Recorder } from "./decision-facts.ts";
import type { LineAnalysis } from "./line-analysis.ts";
import { pushTargets } from "./push-targets.ts";
import { judgeShadow, type ShadowRules } from "./shadow.ts";
import { nonceName } from "./shared-disk.ts";

/** Dependencies of planning and judging. */
export interface PlanningParts {
  /** Reads command lines before the policy judges them. */
  lines: LineAnalysis;
  permissions: Permissions;
  policy: Policy;
  layersFor(subject: LayersFor): Layers;
  /** Finds the names of the objects in a repository; absent: only the work tree is judged. */
  gitNames?(top: string): Promise<GitNames>;
  /** Returns what the sandbox enforces for the commands of an agent that a tool runs, without one those of bash; absent: nothing. */
  confines?(agent: string, tool?: Tool): Wall | undefined;
  /** Lists the files of a workspace without those that git ignores, relative to it; absent: approvals are not bound to them. */
  listFiles?(directory: string): Promise<readonly string[]>;
  /** Returns the digest of the configured rules in force. */
  policyDigest(): string;
  shadow?: ShadowRules;
}

/** State of planning and judging, which has no side effects and may be repeated. */
export interface Planning extends PlanningParts {
  readonly hashes: FileHashes;
}

/** Creates it, with an empty cache of file hashes. */
export function createPlanning(parts: PlanningParts): Planning {
  return { ...parts, hashes: createFileHashes() };
}

/** The part of it that decides, without what opens requests. */
export interface Deciding extends Omit<Planning, "lines" | "permissions"> {
  lines: Pick<LineAnalysis, "read" | "charge">;
  permissions: Pick<Permissions, "decide">;
  /** Replaces the access to the files of this machine. */
  files?(): Files;
}

/** The subject of a decision: the plan of a call, an ask of its body, or what an approver wants explained. */
export interface Question {
  subject: Subject;
  principal: string;
  /** Its paths are canonical, see `resolvePlanPaths`. */
  plan: Plan;
  /** Resolves the paths that command lines name. */
  workspace: PathResolver;
  /** The tool that confines commands; absent: `bash`. */
  tool?: Tool;
  /** The input of the call as approvers see it, for conditions; absent: unknown. */
  request?: JsonObject;
  /** The hashes of files as the session has read them. */
  reads?: PlanContext["reads"];
}

/** A call that is decided on, whether it is made or not. */
export interface CallQuestion extends Pick<Question, "subject" | "principal">, Repetition {
  tool: Tool;
  /** The decoded input. */
  input: unknown;
  ctx: PlanContext;
}

/** Settings of a decision, the only ones by which engine, plan and explanation differ. */
export interface DecisionMode {
  grants: JudgedBy["grants"];
  call?: JudgedBy["call"];
  /** Replaces the rules in force. With a budget of steps in it, the caller charges its use. */
  rules?: Layers;
  /** `none`: what the sandbox of this machine hides does not count, only rules do. */
  facts?: "none";
}

/** The state that an approval is bound to, as it is now. */
export interface Binding {
  /** Hashes by path of the files that change, and of the programs that run. */
  files: Record<string, string>;
  /** Hashes by path of what runs or is read as code. */
  code: Record<string, string>;
  /** The files of the workspace; absent unless more of them may run. */
  tree?: FileTree;
  /** The code as approvers see it. */
  shown: readonly MessageInitShape<typeof ViewFileSchema>[];
  /** The same files, to read their text. */
  texts: readonly CodeText[];
  /** Descriptions of what is not bound. */
  missing: readonly string[];
  /** Descriptions of where the call sends what it sends. */
  targets: readonly string[];
}

/** The decision on a question, with what approvals are bound to and approvers see. Both are made when they are needed. */
export interface CallDecision {
  plan: Plan;
  verdict: Verdict;
  /** The directories outside the workspace that are asked for. */
  outside: readonly string[];
  /** The files that are asked for, by permission. */
  files: { read: readonly string[]; edit: readonly string[] };
  /** For a command line that the sandbox contains: the addresses of the hosts that it names. Absent for other calls. */
  heldHosts?: readonly string[];
  /** The rules by which it was decided. */
  layers: Layers;
  /** Reads what an approval is bound to. */
  bound(): Promise<Binding>;
  /** Adds to asks of the call what the text of the code that runs shows. It decides nothing, and may be incomplete. */
  withCodeRisks<A extends ExpandedAsk>(asks: readonly A[]): Promise<A[]>;
  /** Runs the tool's checks and prepares the preview, unless the call is denied or they would reveal what may not be read. */
  view(): Promise<DecisionView>;
}

/** What approvers see of a decision, and the result of the tool's own checks. */
export interface DecisionView {
  /** Builds the preview; absent if the call is denied or if a preview would reveal what `read` does not allow. */
  preview?(): Promise<Preview>;
  /** The files that run or are read as code. */
  files?: Binding["shown"];
  /** What approvers cannot be shown, each as a text. */
  missing?: readonly string[];
  targets?: Binding["targets"];
  /** The tool's check that failed. */
  problem?: ToolFailure;
}

/** Decides on a call: plans it first. Has no side effects, apart from grants that it adopts, and may be repeated. */
export async function decideCall(
  planning: Planning,
  { tool, input, ctx, repeats, request, ...question }: CallQuestion,
  mode: DecisionMode,
): Promise<CallDecision> {
  const { workspace, files } = rememberPaths(judgedWorkspace(tool, ctx.workspace));
  const made = await makePlan(tool, input, { ...ctx, workspace }, { repeats, request });
  const plan = await withinPlanningTime(resolvePlanPaths(made, files));
  return await decide(planning, { ...question, plan, workspace, tool, request, reads: ctx.reads }, mode);
}

/** Steps 4 and 5: evaluates policy for everything that a plan asks. */
export async function decide(
  planning: Deciding,
  { subject, principal, plan, workspace, tool, request, reads }: Question,
  { grants, call, rules, facts }: DecisionMode,
): Promise<CallDecision> {
  const { permissions, lines, policy } = planning;
  const layers = rules ?? planning.layersFor(subject);
  const steps = layers.steps ?? createMatchSteps();
  const wall = facts === "none" ? undefined : planning.confines?.(subject.agent, tool);
  const walled = wall ? plan.asks.map((ask) => behind(wall, ask, plan)) : plan.asks;
  const planned =
    tool && request ? walled.map((ask) => ({ ...ask, call: { tool: tool.name, input: request } })) : walled;
  const recorder = createRecorder(planning.files?.() ?? filesOf(planning, workspace));
  const asks = await expandAsks(planning, principal, planned, { ...layers, steps }, workspace, recorder);
  let binding: Promise<Binding> | undefined;
  const bound = () => (binding ??= bindPlan(planning, { plan, asks, subject, reads, gitFiles: layers.gitFiles }));
  let codeRisks: ReturnType<typeof risksOfCode> | undefined;
  const readCodeRisks = async () => risksOfCode((await bound()).texts, (texts) => lines.read(principal, texts));
  async function withCodeRisks<A extends ExpandedAsk>(asked: readonly A[]): Promise<A[]> {
    if (!asked.some(({ permission }) => permission === "bash")) return [...asked];
    codeRisks ??= readCodeRisks();
    const { risks, isWhole } = await codeRisks;
    return asked.map((ask) =>
      ask.permission === "bash"
        ? { ...ask, risks: mergeRisks([...(ask.risks ?? []), ...risks]), ...(!isWhole && { hasUnreadCode: true }) }
        : ask,
    );
  }
  const by = { layers: { ...layers, steps }, grants, call, withCodeRisks };
  const judged = await permissions.decide(asks, subject, by);
  const { byRules } = judged;
  const about = { subject, asks: plan.asks, tool: tool?.name, layers, wall, recorder, byRules };
  const verdict: Verdict = { ...judged, facts: () => decisionFacts(planning, about) };
  if (planning.shadow && rules === undefined) {
    const expand = (by: Layers) => expandAsks(planning, principal, planned, by, workspace);
    const about = { subject, planned, asks, byRules, gitFiles: layers.gitFiles, expand };
    verdict.shadow = await judgeShadow(policy, planning.shadow, about);
  }
  if (!layers.steps) lines.charge(principal, steps.used() / stepsPerMs);
  const pathsOf = (wanted: string) =>
    asks.flatMap(({ permission, paths = [] }) => (permission === wanted ? paths : []));
  const decided = {
    ...{ plan, verdict, layers },
    outside: pathsOf("external_directory"),
    files: { read: pathsOf("read"), edit: pathsOf("edit") },
    ...(asks.some(({ permission, contained }) => permission === "bash" && contained === true) && {
      heldHosts: asks.flatMap(({ permission, patterns }) => (permission === "webfetch" ? patterns : [])),
    }),
  };
  return {
    ...{ ...decided, bound, withCodeRisks },
    async view() {
      const isAsked = verdict.action === PermissionAction.ASK;
      const { shown: files, missing, targets } = isAsked ? await bound() : { shown: [], missing: [], targets: [] };
      const view = await viewOf(policy, decided);
      return { ...view, files, targets, missing: [...missing, ...(view.missing ?? [])] };
    },
  };
}

/** Adds what the sandbox enforces to an ask of a plan. */
function behind(wall: Wall, ask: Ask, { asks }: Plan): ExpandedAsk {
  const isEditing = asks.some(({ permission }) => permission === "edit");
  return {
    ...ask,
    ...(wall.hides && { isConfined: true as const }),
    wall: isEditing && wall.problem === undefined ? { ...wall, problem: "names protected files in edits" } : wall,
  };
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

/** Step 4, plan: title, targets and asks, from the input and path resolution alone. */
export async function makePlan(tool: Tool, input: unknown, ctx: PlanContext, repetition: Repetition): Promise<Plan> {
  const plan = await withinPlanningTime(tool.plan(input, ctx));
  return askAboutLoop({ ...plan, title: visibleLine(plan.title) }, tool, repetition);
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
  { policy, lines, gitNames }: Pick<Deciding, "policy" | "lines" | "gitNames">,
  principal: string,
  planned: readonly ExpandedAsk[],
  layers: Layers,
  workspace: PathResolver,
  recorder: Recorder = createRecorder(filesOf({ ...(gitNames && { gitNames }) }, workspace)),
): Promise<ExpandedAsk[]> {
  const asks: ExpandedAsk[] = [];
  for (const ask of planned) {
    const read = async ({ isText, patterns }: Ask) =>
      isText ? readAsTexts(patterns) : await readLines(lines, principal, patterns, recorder);
    const readings = ask.permission === "bash" ? { readings: await read(ask) } : undefined;
    asks.push(...(await withinPlanningTime(policy.expand({ ...ask, ...readings }, layers, recorder.files))));
  }
  return asks;
}

/** Reads command lines. What is not read now may be read another time, so the decision cannot be repeated. */
async function readLines(
  lines: Pick<LineAnalysis, "read">,
  principal: string,
  patterns: readonly string[],
  recorder: Recorder,
): Promise<Readings> {
  const readings = await lines.read(principal, patterns);
  if (patterns.some((line) => readings.has(line) && readings.get(line)?.risks === undefined)) recorder.giveUp();
  return readings;
}

/** Returns the access to the files of this machine. */
function filesOf({ gitNames }: Pick<Deciding, "gitNames">, workspace: PathResolver): Files {
  return {
    async resolve(path, cwd) {
      const resolved = await workspace.resolve(path.startsWith("/") ? path : `${cwd}/${path}`);
      return { ...resolved, ...cautionFor(resolved) };
    },
    list: listDirectory,
    tracked: trackedFiles,
    ...(gitNames && { gitNames }),
  };
}

/** A plan with what it stands for. */
interface Bound extends Pick<Question, "plan" | "subject"> {
  asks: readonly ExpandedAsk[];
  reads: Question["reads"] | undefined;
  gitFiles: Layers["gitFiles"];
}

/** Reads what an approval of a plan is bound to. */
async function bindPlan(
  { hashes, listFiles }: Pick<Planning, "hashes" | "listFiles">,
  { plan: { binds = [], searchPath = "" }, asks, subject: { directory, tool }, reads, gitFiles }: Bound,
): Promise<Binding> {
  const names = asks.flatMap(({ programs = [] }) => programs);
  const programs = await Promise.all(names.map((name) => findProgram(name, searchPath)));
  const files: Record<string, string> = {};
  for (const path of [...binds.map(({ absolute }) => absolute), ...programs])
    if (path !== undefined) files[path] = (await hashes.of(path)).sha256;
  const found = asks.flatMap(({ code }) => code ?? []);
  const missing = new Set(found.flatMap(({ unknown }) => unknown.map((why) => `${unboundFiles}: ${why}`)));
  const code: Record<string, string> = {};
  const shown: MessageInitShape<typeof ViewFileSchema>[] = [];
  const texts: CodeText[] = [];
  let [count, left] = [0, maxCodeBytes];
  const tops = new Set(found.flatMap(({ repositories }) => repositories));
  const runsMore = found.some(({ runsMore }) => runsMore);
  // What a line runs may start git.
  const ofGit = tops.size > 0 || runsMore ? await filesOfGit([...tops], gitFiles, directory) : { names: [], code: [] };
  const { files: named, unread } = await withScripts(found.flatMap(({ files }) => files));
  for (const name of unread) missing.add(`${unboundFiles}: ${name} cannot be read, or is too large`);
  for (const file of tops.size > 0 ? [...named, ...ofGit.code] : named) {
    const { absolute, pattern, external, use } = file;
    if (code[absolute] !== undefined) continue;
    const { sha256, bytes, isBinary, ...content } = await hashes.of(absolute);
    count += sha256.length === sha256Length ? 1 : 0;
    left -= bytes;
    if (count > maxCodeFiles || left < 0) {
      missing.add(`${unboundFiles}: over ${maxCodeFiles} files or ${maxCodeBytes / 1_048_576} MiB of code`);
      break;
    }
    code[absolute] = sha256;
    if (sha256.length !== sha256Length) {
      // Among git's files is the directory of its hooks.
      const isUnbound = named.includes(file) && !absent.test(sha256) && !absolute.startsWith("/dev/");
      if (isUnbound) missing.add(`${unboundFiles}: ${external ? absolute : pattern} is ${sha256}`);
      continue;
    }
    const before = await reads?.get(absolute);
    const changedSinceRead = before !== undefined && before !== sha256;
    const path = external ? absolute : pattern;
    const lines = isBinary && use === "program" ? 0 : content.lines;
    shown.push({ path, sha256, bytes: BigInt(bytes), lines, use: codeUses[use], changedSinceRead });
    texts.push({ ...file, sha256, lines });
  }
  // Without a search path the call runs elsewhere, with other settings.
  const pushes = searchPath === "" ? [] : found.flatMap(({ pushes }) => pushes);
  const targets = pushes.length > 0 && gitFiles ? await pushTargets(pushes, gitFiles.code) : [];
  const bound = { files, code, shown, texts, targets };
  if ((!runsMore && tops.size === 0) || !listFiles) return { ...bound, missing: [...missing] };
  // The host of a delegated call writes one of these with each request.
  const isCompared = (name: string) => !isForeignPermission(tool) || !nonceName.test(basename(name));
  const tree = await (runsMore ? listFiles(directory) : Promise.resolve([])).then(
    (names) => readTree(directory, [...names.filter(isCompared), ...ofGit.names]),
    () => undefined,
  );
  if (!tree) missing.add(`${unboundFiles}: the workspace cannot be read, or has too many files`);
  return { ...bound, ...(tree && { tree }), missing: [...missing] };
}

const unboundFiles = "other files that it may run, and that may change after the approval";
const maxCodeFiles = 64;
const maxCodeBytes = 8 * 1_048_576;
const sha256Length = 64;
/** Errors of a file that does not exist. */
const absent = /^(ENOENT|ENOTDIR)$/;
const codeUses: Readonly<Record<CodeUse, ViewFileUse>> = {
  script: ViewFileUse.SCRIPT,
  build: ViewFileUse.BUILD_INPUT,
  patch: ViewFileUse.PATCH,
  startup: ViewFileUse.STARTUP,
  program: ViewFileUse.PROGRAM,
};

/** The files that git may run or read as settings. */
interface FilesOfGit {
  /** Names relative to a directory, with directories and with the targets of links. */
  names: string[];
  code: PlacedCode[];
}

/** Lists the settings and hooks of repositories, and the files that the settings name. */
async function filesOfGit(tops: readonly string[], known: Layers["gitFiles"], directory: string): Promise<FilesOfGit> {
  const own = tops.flatMap((top) => [join(top, ".git/config"), join(top, ".git/hooks")]);
  const found = [...new Set([...own, ...(known?.code ?? [])])].map(async (path) => {
    const entries = await listDirectory(path);
    const names = entries.filter(({ name, isDirectory }) => !isDirectory && !name.endsWith(".sample"));
    return [path, ...names.map(({ name }) => join(path, name))];
  });
  const paths = (await Promise.all(found)).flat();
  const targets = await Promise.all(paths.map(async (path) => await realpath(path).catch(() => path)));
  const code = [...new Set(paths)].map((absolute): PlacedCode => {
    const pattern = relative(directory, absolute);
    return { absolute, pattern, external: pattern === ".." || pattern.startsWith("../"), use: "startup" };
  });
  return { names: [...new Set([...paths, ...targets])].map((path) => relative(directory, path)), code };
}

/** The kernel stamps a change with the time of its last tick; the files were read before the request was opened. */
const tickMs = 10;

/** Names the code that changed after a request was opened, with the size of what it has shown. */
export function changedSince(
  { created, view }: Pick<PermissionRequest, "created" | "view">,
  { shown, tree }: Pick<Binding, "shown" | "tree">,
): string[] {
  const before = new Map(view?.files.map((file) => [file.path, file]));
  const now = new Map(shown.map((file) => [file.path ?? "", file]));
  const paths = new Set([...before.keys(), ...now.keys()]);
  const changed = [...paths].filter((path) => before.get(path)?.sha256 !== now.get(path)?.sha256);
  const touched = [...(tree?.changedMs ?? [])].filter(([, ms]) => ms >= created - tickMs).map(([path]) => path);
  return [...new Set([...changed, ...touched])].map((path) => {
    const [was, is] = [before.get(path), now.get(path)];
    if (was?.sha256 === is?.sha256) return visibleLine(path);
    const size = was && is ? `${was.bytes} to ${is.bytes} bytes` : is ? "new" : "no longer there";
    return `${visibleLine(path)} (${size})`;
  });
}

async function viewOf(
  policy: Policy,
  { plan, verdict, outside, files, layers }: Omit<CallDecision, "bound" | "view" | "withCodeRisks">,
): Promise<DecisionView> {
  if (verdict.action === PermissionAction.DENY || !plan.inspect) return {};
  const concealed = (plan.reveals ?? []).filter((path) => !mayReveal(policy, path, layers));
  if (concealed.length > 0) return { missing: hiddenChanges(plan, concealed) };
  try {
    const { preview, hidden } = await withinPlanningTime(plan.inspect());
    if (!preview) return {};
    return {
      async preview() {
        const found = await hidden?.({ outside, files });
        return Object.assign(
          visiblePreview(preview()),
          found && { hidden: create(HiddenPathsSchema, { ...found, paths: found.paths?.map(visibleLine) ?? [] }) },
        );
      },
    };
  } catch (cause) {
    if (cause instanceof ToolFailure) return { problem: cause };
    // A file changed during the inspection. Nothing is approved yet, so it is a failed check like any other.
    if (cause instanceof ChangedAfterApproval) return { problem: new ToolFailure(cause.message, { cause }) };
    throw cause;
  }
}

function mayReveal(policy: Policy, path: ResolvedPath, layers: Layers): boolean {
  if (path.external) return false;
  const ask = { permission: "read", patterns: [path.pattern], paths: [path.absolute] };
  return strictest(policy.judge(ask, layers)) === PermissionAction.ALLOW;
}

/** Names the files that the call changes and of which approvers must not see the present text. */
function hiddenChanges({ asks }: Plan, concealed: readonly ResolvedPath[]): string[] {
  const changed = new Set(asks.flatMap(({ permission, paths = [] }) => (permission === "edit" ? paths : [])));
  return concealed
    .filter(({ absolute }) => changed.has(absolute))
    .map(({ pattern }) => `the present text of ${pattern}: reading it needs approval too`);
}

const maxDiffBytes = 128 * 1024;

/** Cuts the diff of a preview to what an ask holds; `url` names where the whole diff is stored. */
export function cutPreview(preview: Preview, url = ""): Preview {
  const bytes = Buffer.from(preview.diff);
  if (bytes.length <= maxDiffBytes) return preview;
  return { ...preview, diff: bytes.subarray(0, bytes.lastIndexOf(10, maxDiffBytes)).toString(), url };
}

/** Makes invisible characters of a preview visible to approvers. */
export function visiblePreview({
  diff = "",
  command = "",
  paths = [],
  hosts = [],
  additions = 0,
  deletions = 0,
  text = "",
}: MessageInitShape<typeof PreviewSchema>): Preview {
  return create(PreviewSchema, {
    diff: visible(diff),
    command: visible(command),
    paths: paths.map(visibleLine),
    hosts: hosts.map(visibleLine),
    additions,
    deletions,
    text: visible(text),
  });
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
async function withinPlanningTime<T>(work: Promise<T>): Promise<T> {
  return await within(maxPlanningMs, work, () => {
    throw new ToolFailure(`Planning the call took longer than ${maxPlanningMs / 1000} s.`);
  });
}
