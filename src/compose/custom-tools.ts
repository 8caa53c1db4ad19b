import { existsSync, realpathSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { type CustomTools, createCustomTools } from "../bodies/processes/custom-tools.ts";
import type { StartedToolProcess, ToolProcessPlace, ToolProcessStarter } from "../bodies/processes/tool-process.ts";
import { createTrust } from "../bodies/processes/trust.ts";
import { toolProcessArgs } from "../bodies/tool-process-args.ts";
import { type Config, ConfigError } from "../config/config.ts";
import { isWorkspaceFile } from "../config/workspace-rules.ts";
import { assets, isCheckout } from "../core/assets.ts";
import { createLastWords } from "../core/last-words.ts";
import { locateProgram } from "../core/locate-program.ts";
import type { Logger } from "../core/logger.ts";
import { isWithin } from "../core/paths.ts";
import { visible } from "../core/visible.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import type { UpstreamSources } from "../sources/mcp/upstream-sources.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry } from "../tool/registry.ts";
import type { Judge } from "../tool/tool.ts";
import { environmentOf } from "../tools/process/confine-command.ts";
import type { Supervisor } from "../tools/process/supervisor.ts";
import { type LastingProgram, residentBytes, startLastingProgram } from "./lasting-program.ts";
import { hostNetwork, hostWords } from "./upstreams.ts";

/** Offers tool files and plugins. Refuses to start if a plugin of the configuration cannot be loaded and is not optional, since it may guard calls. */
export async function openCustomTools(
  config: Config,
  { registry, hooks, ...parts }: ToolProcessParts & { registry: Registry; hooks: HookChain },
): Promise<CustomTools> {
  const { file, workspaces, plugins, workspacePlugins, trustDirectory } = config;
  const { log } = parts;
  const user = dirname(file);
  const isInWorkspace = [...workspaces.values()].some((root) => isWithin(user, root));
  const custom = createCustomTools(
    {
      ...{ workspaces, plugins },
      // Tools must not load from a directory that tools can write to.
      userDirectory: isInWorkspace ? undefined : user,
      workspacePlugins: (workspace) => workspacePlugins[workspace] ?? "require",
    },
    {
      ...{ registry, hooks },
      starter: createToolProcessStarter(config, parts),
      trust: createTrust(trustDirectory),
      report: ({ path, line, reason }) => {
        const what = isWorkspaceFile(path) ? "a policy file only narrows" : "a tool or plugin file is not loaded";
        log.warn(what, { path, line, reason });
      },
    },
  );
  registry.addProvider(custom);
  const [first] = workspaces.keys();
  const problem = first === undefined ? undefined : await custom.checkPlugins(first);
  if (problem === undefined) return custom;
  await custom.close();
  throw new ConfigError(`${file}: ${problem}`);
}

/** Lists the processes of tool files and plugins behind the MCP servers. */
export function withToolProcesses(
  { accept, list }: Pick<UpstreamSources, "accept" | "list">,
  custom: Pick<CustomTools, "list">,
): Pick<UpstreamSources, "accept" | "list"> {
  return { accept, list: async () => [...(await list()), ...(await custom.list())] };
}

/** The parts of a replica that run tool processes. */
interface ToolProcessParts {
  sandbox: Sandbox;
  supervisor: Supervisor;
  /** Returns the function that evaluates the rules of a workspace for no agent in particular. */
  judgeIn(workspace: string, directory: string): Judge;
  log: Logger;
}

const idleMs = 300_000;

/** Creates what starts the processes of tool files and plugins, in the sandbox and with the masks of the configured rules. */
function createToolProcessStarter(
  {
    toolProcesses: { hosts, localPorts, env: named, bun },
    file,
    workspaces,
  }: Pick<Config, "toolProcesses" | "file" | "workspaces">,
  { sandbox, supervisor, judgeIn, log }: ToolProcessParts,
): ToolProcessStarter {
  const env = environmentOf(named);
  const configDirectory = dirname(file);
  // Those of a checkout may be a link.
  const packages = isCheckout ? [realpathSync(join(assets.root, "node_modules"))] : [];
  let count = 0;

  async function start(place: ToolProcessPlace, onStale: () => void): Promise<StartedToolProcess> {
    const { path, workspace } = place;
    const args = { path, workspace: workspace.name };
    const bunPath = findBun({
      named: bun,
      configDirectory,
      searchPath: env.PATH,
      workspaces: [...workspaces.values()],
    });
    // Links may lead through directories that change, such as the temporary one.
    const runtime = realpathSync(bunPath ?? process.execPath);
    // They may lie in a directory that commands do not see.
    const code = [...codeRootsOf(path, configDirectory, workspace.directory), assets.root, ...packages, runtime];
    count += 1;
    const program = await startLastingProgram(
      { sandbox, supervisor },
      {
        call: { sessionId: "tools", callId: `${workspace.name}-${count}` },
        argv: [runtime, ...toolProcessArgs(bunPath ? "bun" : "node"), fileURLToPath(assets.toolProcess)],
        env,
        files: {
          rules: async () => judgeIn(workspace.name, workspace.directory).fileRules(),
          onStale(reason) {
            log.warn("a tool process is started again, since rules or files changed", { args, reason });
            onStale();
          },
          onProblem: (error) => log.warn("files of a tool process cannot be checked", { args, error }),
        },
      },
      {
        ...{ agent: "", cwd: workspace.directory, workspace: workspace.directory, hasPipes: true },
        directories: code.map((each) => ({ path: each, isWritable: false, isCode: true })),
        network: hostNetwork(
          { name: `tools ${count}`, title: `the tool process of ${path}`, table: "[tools]", hosts, localPorts },
          { log, args },
        ),
      },
    );
    return startedProcess(program, createPrintedLog(log, args));
  }

  return {
    ...{ start, idleMs, now: Date.now },
    confinement:
      sandbox.state.profile === "off" ? "without a sandbox" : `in the sandbox, with ${hostWords(hosts, localPorts)}`,
    explain: (text) =>
      sandbox.state.profile === "off" ? undefined : explainRefusal(text, hostWords(hosts, localPorts)),
    crashed: ({ path, workspace }, reason) =>
      log.warn("a tool process ended", { path, reason: visible(reason), workspace: workspace.name }),
  };
}

/** Errors by which programs report that they reached no host. */
const unreachable =
  /fetch failed|Unable to connect|Was there a typo|ECONNREFUSED|ConnectionRefused|ENOTFOUND|EAI_AGAIN|ENETUNREACH|FailedToOpenSocket|Proxy refused/;
const unset =
  /\b(?:[Ss]et|[Mm]issing|[Nn]o|[Ww]ithout)\b.{0,30}\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN|SECRET|URL)\b|\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN|SECRET|URL)\b.{0,30}\b(?:not set|missing|required|undefined)\b/;
const readOnly = /EROFS|[Rr]ead-only file system/;

/** Returns the setting that an error of a tool in its sandbox may come from; undefined if none is known. */
function explainRefusal(text: string, network: string): string | undefined {
  if (unreachable.test(text))
    return `Note: tool files run in the sandbox, with ${network}. The operator can add a host to hosts, or a port of this machine to local_ports, under [tools] in toolgate.toml.`;
  if (unset.test(text))
    return "Note: tool files get only the variables that the operator names in env under [tools] in toolgate.toml.";
  if (!readOnly.test(text)) return undefined;
  return "Note: tool files run in the sandbox, which cannot change the directories of tools, such as .opencode. Let the tool write into another directory of the workspace.";
}

/** Connects a started program: its pipes speak the protocol, and what it prints goes to the log. */
function startedProcess(
  { pid, pipes: [toWorker, fromWorker], stdin, stdout, stderr, exited, kill }: LastingProgram,
  print: ReturnType<typeof createPrintedLog>,
): StartedToolProcess {
  if (toWorker === undefined || fromWorker === undefined) throw new Error("a tool process has no pipes");
  stdin.end();
  const words = createLastWords();
  stdout.setEncoding("utf8").on("data", (text: string) => print("stdout", text));
  stderr.setEncoding("utf8").on("data", (text: string) => {
    words.add(text);
    print("stderr", text);
  });
  return {
    ...{ toWorker, fromWorker, exited, kill },
    lastWords: () => visible(words.text()),
    memory: () => residentBytes(pid),
  };
}

/**
 * Finds Bun: where the configuration says, beside it, or in PATH. One in a workspace is not run, since agents can replace it, and
 * the process answers for hooks.
 */
function findBun({
  named,
  configDirectory,
  searchPath,
  workspaces,
}: {
  named: string | undefined;
  configDirectory: string;
  searchPath: string;
  workspaces: readonly string[];
}): string | undefined {
  const beside = locateProgram(join(configDirectory, "node_modules/.bin/bun"), undefined);
  const found = named ?? beside ?? locateProgram("bun", searchPath);
  if (found === undefined) return undefined;
  const real = realpathSync(found);
  return workspaces.some((root) => isWithin(found, root) || isWithin(real, root)) ? undefined : found;
}

/**
 * Returns the paths that a process sees of the code which it loads: with a file of the configuration all that lies beside that. What
 * holds the workspace is followed by its part that is code alone, since rules for every path hide the rest.
 */
function codeRootsOf(path: string, configDirectory: string, workspace: string): string[] {
  const packages = path.indexOf("/node_modules/");
  // A home directory holds too much.
  const directory = isWithin(homedir(), dirname(path)) ? path : dirname(path);
  const own = packages >= 0 ? join(path.slice(0, packages), "node_modules") : directory;
  const root = isWithin(path, configDirectory) ? configDirectory : own;
  if (!isWithin(workspace, root)) return [root];
  const code = isWithin(workspace, path) ? ["tool", "tools"].map((name) => join(path, name)) : [path];
  return [root, ...code.filter((each) => existsSync(each))];
}

const maxLines = 100;
const windowMs = 60_000;
const maxLineLength = 1_000;

/** Creates the log of what a program prints: whole lines, escaped and cut, up to a number of them each minute. Others are counted. */
function createPrintedLog(
  log: Pick<Logger, "info" | "warn">,
  args: { path: string; workspace: string },
): (stream: "stdout" | "stderr", text: string) => void {
  const rest = { stdout: "", stderr: "" };
  let left = maxLines;
  let dropped = 0;
  let windowEnd = 0;

  function write(stream: string, line: string): void {
    const now = Date.now();
    if (now >= windowEnd) {
      if (dropped > 0) log.warn("lines that a tool process printed were dropped", { ...args, count: dropped });
      [left, dropped, windowEnd] = [maxLines, 0, now + windowMs];
    }
    if (left === 0) {
      dropped += 1;
      return;
    }
    left -= 1;
    log.info("a tool process printed", { ...args, args: { [stream]: visible(line.slice(0, maxLineLength)) } });
  }

  return (stream, text) => {
    const lines = (rest[stream] + text).split("\n");
    // A line without end is cut here already.
    rest[stream] = (lines.pop() ?? "").slice(0, maxLineLength);
    for (const line of lines) if (line.trim() !== "") write(stream, line);
  };
}
