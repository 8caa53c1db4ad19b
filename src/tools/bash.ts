import { lstat, realpath, stat } from "node:fs/promises";
import { constants } from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import * as z from "zod";
import { isWithin } from "../core/paths.ts";
import { visible as shown } from "../core/visible.ts";
import type { PlaceDirectory, SandboxConfinement, SandboxPlace } from "../sandbox/confinement.ts";
import type { Confined } from "../sandbox/layers.ts";
import type { PlaceNetwork } from "../sandbox/network/session-networks.ts";
import { namedDirectories } from "../sandbox/plan-files.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import { defineTool } from "../tool/define-tool.ts";
import { ChangedAfterApproval, ExecutorLost, ToolFailure } from "../tool/errors.ts";
import { externalAsks, pathAsks, type ResolvedPath } from "../tool/path-asks.ts";
import type { CallPaths, DefinedTool, PlanContext, ToolContext, TraceContext } from "../tool/tool.ts";
import { filePath, type Workspace } from "../tool/workspace.ts";
import { commandNetwork, explainNetwork, type NetworkUse, networkMetadata } from "./process/command-network.ts";
import {
  confineCommand,
  environmentOf,
  explainRefusals,
  hiddenPaths,
  type Spares,
  shownPaths,
} from "./process/confine-command.ts";
import { type EndOfCommand, notRun, type Pipes, runCommand } from "./process/run-command.ts";
import { type Quarantine, type SettledCreated, settleCreated, takeCreated } from "./process/settle-created.ts";
import type { Supervisor } from "./process/supervisor.ts";

/** Time from the command's timeout to the call's deadline, so that a command that ends slowly still completes its call. */
const graceMs = 5_000;
const maxTimeoutMs = 3_600_000 - graceMs;
const maxEdits = 20;
/** Maximum length of an argument in the kernel. */
const maxCommandBytes = 131_071;

/** Runs command lines, each in a new shell. */
export function createBash({
  supervisor,
  sandbox,
  pipes,
  quarantine,
  spares,
}: {
  supervisor: Supervisor;
  sandbox: Sandbox;
  pipes: Pipes;
  /** Takes what commands make although they may not; absent: it stays, and the result names it. */
  quarantine?: Quarantine | undefined;
  /** Sandboxes that wait for the next command of a session; absent: each command makes its own. */
  spares?: Spares | undefined;
}): DefinedTool {
  const parts = { sandbox, quarantine };
  return defineTool({
    name: "bash",
    version: "5",
    description: [
      "Run a command line with bash and return what it prints, stdout and stderr together.",
      "Each call starts a new shell in the workspace; to run in another directory set workdir instead of using cd.",
      "Input is empty. Of a long output the end is returned. Background processes end with the command.",
    ].join(" "),
    input,
    permissions: ["bash"],
    destructive: true,
    openWorld: true,
    keep: { end: "tail" },
    async plan({ command, timeout, workdir, description, edits = [] }, { agent, workspace, environment, judge }) {
      const directory = await workspace.resolve(workdir ?? ".");
      const env = await environment(directory.absolute);
      const about = description === undefined ? {} : { description };
      const missing = sandbox.missing(agent);
      const changed = await Promise.all(edits.map((path) => workspace.resolve(path)));
      const editTrees = changed.map(({ absolute }) => absolute);
      return {
        title: description || (command.trim().split("\n", 1)[0] ?? command),
        asks: [
          ...externalAsks({ ...directory, isDirectory: true }),
          {
            permission: "bash",
            patterns: [command],
            cwd: directory.absolute,
            metadata: { command, workdir: directory.pattern, ...about },
            ...(missing !== undefined && { alwaysAsk: `runs without a sandbox, since ${missing}` }),
          },
          ...changed.flatMap((path) => pathAsks("edit", path)),
        ],
        cwd: directory.absolute,
        env,
        searchPath: environmentOf(env).PATH,
        timeoutMs: timeout + graceMs,
        reveals: directory.external ? [directory] : [],
        directory,
        editTrees,
        async inspect() {
          await checkDirectory(workspace, directory);
          return {
            preview: () => ({ command, paths: [directory.pattern] }),
            async hidden(call) {
              const place = await commandPlace({ agent, workspace, judge }, call, { directory, editTrees });
              return await hiddenPaths(sandbox, place);
            },
          };
        },
      };
    },
    async execute({ command, timeout, description = "" }, ctx) {
      await checkDirectory(ctx.workspace, ctx.plan.directory);
      const marks = await supervisor.watch(ctx).catch((cause: unknown) => {
        throw notRun("The command was not run, since it cannot be supervised", cause);
      });
      const killsBefore = supervisor.kills();
      const cwd = ctx.plan.directory.absolute;
      const network = commandNetwork(ctx);
      const place: SandboxPlace = {
        ...(await commandPlace(ctx, ctx, ctx.plan)),
        session: ctx.rootSessionId,
        network,
      };
      const shell = ["/bin/bash", "--noprofile", "--norc", "-c", command] as const;
      const env = { ...environmentOf(ctx.plan.env), ...traced(ctx.trace), ...marks };
      const waiting = spares?.take(ctx.rootSessionId, shell, env);
      const confined = await confineCommand(sandbox, shell, place, ctx.ask, waiting?.spare).catch(
        async (error: unknown) => {
          await waiting?.end();
          throw error;
        },
      );
      const tail = createTail();
      const running = runCommand({
        argv: confined.argv,
        cwd,
        env: { ...env, ...confined.env },
        waiting: waiting?.become(confined, env),
        descriptors: confined.descriptors,
        timeoutMs: timeout,
        signal: ctx.signal,
        output(chunk) {
          tail.add(chunk);
          return ctx.output(chunk);
        },
        pipes,
        watchUsage: (first, onExceeded) => sandbox.watchUsage(first, confined.usage, onExceeded),
        kill: (group) => supervisor.kill(ctx, group),
      });
      await running.catch(() => undefined);
      const exceeded = confined.exceeded();
      await waiting?.end();
      const taken = await takeCreated(parts, confined, ctx).finally(confined.release);
      const ended = { ...(exceeded !== undefined && { exceeded }), ...(await running) };
      if (await wasSupervised(supervisor, killsBefore, ended))
        throw new ExecutorLost(
          "The command was killed because the service did not respond, so its outcome is unknown. Check what it did before you call it again.",
        );
      const created = await settleCreated(parts, taken, ctx);
      // It only saves time, so the result neither waits for it nor fails with it.
      if (spares) void prepareNext(spares, ctx, network).catch(() => {});
      const unseen = ended.code === 0 ? undefined : await explainUnseen(tail.text(), confined.visible, ctx);
      const { metadata, ...text } = resultOf(ended, {
        ...{ timeout, confined, place, tail: tail.text(), use: network.use, created, unseen },
        confinement: sandbox.confinement(ctx.agent),
      });
      const problem = sandbox.problem ?? network.use.unavailable;
      const shown = { ...metadata.sandbox, ...(problem && { problem }) };
      return { ...text, metadata: { ...metadata, description, sandbox: shown } };
    },
  });
}

/** Prepares the sandbox of a session's next command, for which no call has allowed anything. */
async function prepareNext(
  spares: Spares,
  ctx: ToolContext & { plan: { directory: ResolvedPath } },
  network: PlaceNetwork,
): Promise<void> {
  const { rootSessionId: session, plan } = ctx;
  const nothing = { outside: [], files: { read: [], edit: [] } };
  const place = await commandPlace(ctx, nothing, { directory: plan.directory, editTrees: [] });
  spares.prepare(session, { ...place, session, network }, environmentOf({}));
}

/** Describes the end of a command: what the model has to know in addition to the output, and metadata. */
function resultOf(
  ended: EndOfCommand,
  {
    timeout,
    confined: { covered, layers },
    place: { workspace },
    tail,
    use,
    created,
    unseen,
    confinement,
  }: {
    timeout: number;
    confined: Confined;
    place: SandboxPlace;
    tail: string;
    use: NetworkUse;
    created: SettledCreated;
    unseen: string | undefined;
    confinement: SandboxConfinement;
  },
) {
  const refusals = explainRefusals(tail, covered, workspace);
  const unreached = explainNetwork(use, confinement.network, { tail, failed: ended.code !== 0 });
  const note = describeEnd(ended, timeout, refusals, created.note, unseen, unreached);
  const used = networkMetadata(use);
  const { hidden, readOnly } = covered;
  return {
    ...(ended.bytes === 0 ? { output: "(no output)" } : {}),
    ...(note === undefined ? {} : { note }),
    metadata: {
      exit: ended.code,
      signal: ended.signal,
      ...(used && { network: used }),
      sandbox: {
        ...confinement,
        ...(use.unavailable !== undefined && { network: "none" }),
        layers: [...layers],
        ...(hidden.length > 0 && { hidden: { ...shownPaths(hidden, workspace) } }),
        ...(readOnly.length > 0 && { readOnly: { ...shownPaths(readOnly, workspace) } }),
        ...(created.metadata.length > 0 && { created: created.metadata }),
      },
    },
  };
}

const command = z
  .string()
  .refine((text) => Buffer.byteLength(text) <= maxCommandBytes, {
    error: `command is over ${maxCommandBytes} bytes; write it to a file and run that`,
    abort: true,
  })
  .refine((text) => text.trim() !== "", "command is empty; write a command line")
  .refine((text) => !text.includes("\0"), "command contains a NUL character; remove it")
  .refine(
    // Trimmed first: a pattern with spaces at both ends would try each space as the beginning of the end.
    (text) => !/^cd(\s[^;&|\n]*)?$/.test(text.trim().replace(/;$/, "")),
    "a cd on its own has no effect on later calls; set workdir on the call that needs the directory",
  );

const input = z.object({
  command: command.describe("The command line"),
  timeout: z
    .int()
    .positive()
    .max(maxTimeoutMs)
    .default(120_000)
    .describe("Milliseconds after which the command is stopped"),
  workdir: filePath.optional().describe("Directory to run in; default the workspace"),
  description: z.string().optional().describe("What the command does, in 5 to 10 words"),
  edits: z
    .array(filePath)
    .max(maxEdits)
    .optional()
    .describe("Protected files or directories that the command changes, such as .git/config; each is asked for"),
});

/** Checks if the supervisor killed a command: it reports that a moment after the kill. */
async function wasSupervised(
  supervisor: Supervisor,
  before: number,
  { signal, code, timedOut, exceeded }: EndOfCommand,
) {
  if (timedOut || exceeded !== undefined || !(signal === "SIGKILL" || code === 128 + constants.signals.SIGKILL))
    return false;
  for (let round = 0; round < 20 && supervisor.kills() === before; round += 1) await delay(50);
  return supervisor.kills() > before;
}

/** Throws unless the path still leads to the same directory. */
async function checkDirectory(workspace: Workspace, directory: ResolvedPath): Promise<void> {
  const now = await workspace.resolve(directory.absolute);
  if (now.absolute !== directory.absolute) {
    throw new ChangedAfterApproval(`workdir ${directory.absolute} now leads to ${now.absolute}. Call the tool again.`);
  }
  if (!now.isDirectory)
    throw new ToolFailure(`workdir ${directory.absolute} is not a directory. Create it or name another one.`);
}

/** Returns the variables by which programs find the trace that they belong to. */
function traced(trace: TraceContext | undefined): Record<string, string> {
  if (!trace) return {};
  const { traceparent, tracestate } = trace;
  return { TRACEPARENT: traceparent, ...(tracestate !== undefined && { TRACESTATE: tracestate }) };
}

/** Makes the note that the model needs in addition to the output. */
function describeEnd(end: EndOfCommand, timeout: number, ...reasons: (string | undefined)[]): string | undefined {
  const text = [endOf(end, timeout), ...reasons].filter((line) => line !== undefined).join("\n");
  return text === "" ? undefined : `<bash_metadata>\n${text}\n</bash_metadata>`;
}

function endOf({ code, signal, timedOut, exceeded }: EndOfCommand, timeout: number): string | undefined {
  if (exceeded !== undefined) return `command was killed, since ${exceeded}`;
  if (timedOut) {
    return `shell tool terminated command after exceeding timeout ${timeout} ms. If this command is expected to take longer and is not waiting for interactive input, retry with a larger timeout value in milliseconds.`;
  }
  if (signal !== null) return `command was ended by ${signal}`;
  if (code === 0) return undefined;
  return `command exited with code ${code}${signalOf(code)}`;
}

/** Names the signal in an exit code: shells, and so the sandbox, report an end by signal as 128 plus its number. */
function signalOf(code: number | null): string {
  const [name] = Object.entries(constants.signals).find(([, number]) => number + 128 === code) ?? [];
  return name === undefined ? "" : ` (128 + ${name})`;
}

/** Retains the end of an output, in which programs report why they failed. */
function createTail() {
  let last = Buffer.alloc(0);
  return {
    add(chunk: Uint8Array) {
      last = Buffer.concat([last, chunk.subarray(-maxTailBytes)]).subarray(-maxTailBytes);
    },
    text: () => last.toString(),
  };
}

const maxTailBytes = 4_096;

/** Returns the place of a command: its directories, and the rules that hold for the files inside. */
async function commandPlace(
  { agent, workspace, judge }: Pick<PlanContext, "agent" | "workspace" | "judge">,
  { outside, files }: CallPaths,
  { directory, editTrees }: { directory: ResolvedPath; editTrees: readonly string[] },
): Promise<SandboxPlace> {
  return {
    agent,
    cwd: directory.absolute,
    workspace: workspace.directory,
    ...(await placeDirectories({ judge, outside, files }, editTrees)),
    files: { rules: judge.fileRules(), ...files, editTrees },
  };
}

/** Errors by which programs report that a path does not exist, or cannot be made. */
const absent =
  /No such file or directory|ENOENT|[Nn]ot found|[Dd]oes not exist|doesn't exist|FileNotFound|Read-only file system|EROFS/;
const absolutePath = /(?<![\w.~/-])\/[^\s'"`:;,()[\]{}<>|]+/g;
const maxChecked = 20;
const maxNoted = 3;

/**
 * Explains errors of a command about paths that exist on this machine and not in its sandbox, with the setting that shows them.
 * Undefined if its last output names none, or only such as rules deny: the command may have printed them to find out.
 */
async function explainUnseen(
  tail: string,
  visible: readonly string[],
  { workspace, judge }: Pick<ToolContext, "workspace" | "judge">,
): Promise<string | undefined> {
  const named = tail.split("\n").flatMap((line) => (absent.test(line) ? (line.match(absolutePath) ?? []) : []));
  const unseen: string[] = [];
  for (const path of [...new Set(named)].slice(0, maxChecked)) {
    if (visible.some((root) => isWithin(path, root)) || isOfKernel.test(path)) continue;
    const found = await workspace.resolve(path).catch(() => undefined);
    if (found === undefined || found.asks("read").some((ask) => judge(ask).action === "deny")) continue;
    if (await lstat(found.absolute).catch(() => undefined)) unseen.push(path);
  }
  if (unseen.length === 0) return undefined;
  const paths = unseen.slice(0, maxNoted).map(shown).join(", ");
  return `${paths}: exists on this machine, but commands do not see it. Name the path in the command line, which asks external_directory, and in edits if the command changes it. The operator can show it to all commands by readable or writable under [sandbox].`;
}

const isOfKernel = /^\/(dev|proc)(\/|$)/;

/**
 * Collects the directories outside the workspace that a command sees: those that its call was allowed, and those that rules
 * allow. They are read-only unless the call was allowed to edit something below, or rules allow that.
 */
async function placeDirectories(
  { judge, outside, files }: Pick<ToolContext, "judge" | "outside" | "files">,
  changed: readonly string[],
): Promise<Pick<SandboxPlace, "directories" | "closed">> {
  const { candidates, closed } = namedDirectories(judge.fileRules());
  const allows = (permission: string, pattern: string, path: string) =>
    judge({ permission, patterns: [pattern], paths: [path] }).action === "allow";
  const isAllowed = (path: string) => allows("external_directory", below(path, "*"), path);
  const allowed = (await existing(candidates.filter(isAllowed))).filter(isAllowed);
  const edited = [...files.edit, ...changed];
  return {
    directories: [...new Set([...outside, ...allowed])].map((path): PlaceDirectory => {
      const file = below(path, "toolgate-any-file");
      return { path, isWritable: edited.some((one) => isWithin(one, path)) || allows("edit", file, file) };
    }),
    closed: (await existing(closed)).filter((path) => !outside.includes(path) && !isAllowed(path)),
  };
}

const below = (directory: string, name: string) => `${directory === "/" ? "" : directory}/${name}`;

/** Returns the canonical paths of those that are directories. */
async function existing(paths: readonly string[]): Promise<string[]> {
  const found = paths.map(async (path) => {
    const canonical = await realpath(path);
    return (await stat(canonical)).isDirectory() ? [canonical] : [];
  });
  return (await Promise.allSettled(found)).flatMap((one) => (one.status === "fulfilled" ? one.value : []));
}
