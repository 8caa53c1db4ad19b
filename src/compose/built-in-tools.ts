import { closeSync, existsSync, mkdirSync, openSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";
import { createTrust } from "../bodies/processes/trust.ts";
import type { Skills } from "../bodies/skills/skills.ts";
import type { PlanningParts } from "../call/decide.ts";
import { type Config, ConfigError } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import type { SearchSettings } from "../core/search-providers.ts";
import { maxOpenFiles } from "../edge/http/connection-caps.ts";
import { openControlGroups } from "../sandbox/control-groups.ts";
import { createGitHistory, type GitHistory } from "../sandbox/git-history.ts";
import { TooManyMounts } from "../sandbox/plan-files.ts";
import { openSandbox, type Sandbox } from "../sandbox/sandbox.ts";
import { boundTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { Registry } from "../tool/registry.ts";
import type { Judge, Tool } from "../tool/tool.ts";
import { builtInTools, searchTools, subagentTools } from "../tools/index.ts";
import type { ServerStart, ServerStarter } from "../tools/lsp/find-server.ts";
import { createLanguageServers, type LanguageServers } from "../tools/lsp/language-servers.ts";
import { commandSearchPath, createSpares, environmentOf } from "../tools/process/confine-command.ts";
import { createPipes } from "../tools/process/run-command.ts";
import { createQuarantine } from "../tools/process/settle-created.ts";
import { createSupervisor, type Supervisor } from "../tools/process/supervisor.ts";
import { startLastingProgram } from "./lasting-program.ts";

/** Opens the configured sandbox. If it cannot start: refuses where the configuration requires it, otherwise logs a warning. */
export async function startSandbox(
  { sandbox: wanted, dataDirectory, serviceDirectory, loginFile }: Config,
  log: Logger,
  scope: AsyncDisposableStack,
): Promise<{ sandbox: Sandbox; warnings: string[] }> {
  const hasLoginFile = loginFile !== undefined && createEmptyFile(loginFile);
  const hasServiceDirectory = serviceDirectory !== undefined && existsSync(serviceDirectory);
  const pipes = createPipes();
  const opened = await openSandbox({
    ...{ wanted, pipes, groups: openControlGroups() },
    agents: wanted.agents,
    ...{ writable: wanted.writable, readable: wanted.readable },
    searchPath: commandSearchPath(),
    ...{ maxMasks: wanted.maxMasks, requireAll: wanted.requireAll, maxMemoryBytes: wanted.maxMemoryBytes },
    temporary: join(dataDirectory, "tmp"),
    mountPoints: join(dataDirectory, "mounts"),
    hidden: [
      { path: dataDirectory, kind: "directory" as const },
      ...(hasServiceDirectory ? [{ path: serviceDirectory, kind: "directory" as const }] : []),
      ...(hasLoginFile ? [{ path: loginFile, kind: "file" as const }] : []),
      ...wanted.hidden.map((path) => ({ path, kind: "file" as const })),
    ],
  });
  const close = () => {
    opened.close();
    void pipes.close();
  };
  scope.defer(close);
  const sandbox: Sandbox = { ...opened, close };
  const warnings = await sandboxWarnings(sandbox);
  for (const warning of [...(wanted.hasBooleanNetwork ? [booleanNetwork] : []), ...warnings]) log.warn(warning);
  if (sandbox.problem === undefined) {
    if (sandbox.incomplete.length > 0)
      throw new ConfigError(`require = true under [sandbox], and ${sandbox.incomplete.join("; ")}`);
    const { profile, network } = sandbox.state;
    const layers = sandbox.layers();
    if (layers.length > 0)
      log.info(`commands run in the sandbox ${profile}, network ${network}, layers ${layers.join(", ")}`);
    return { sandbox, warnings };
  }
  if (wanted.required) throw new ConfigError(`the sandbox that is configured cannot start: ${sandbox.problem}`);
  log.warn(`commands run without a sandbox: ${sandbox.problem}`);
  return { sandbox, warnings };
}

const booleanNetwork =
  'network under [sandbox] is no boolean any more: true now means "proxy", which reaches only hosts that rules or a person allow, and false means "none". Write one of "proxy", "none" and "open"';

/** Returns the facts about this machine that weaken the sandbox, each with the next step. */
async function sandboxWarnings(sandbox: Sandbox): Promise<string[]> {
  const missing = await sandbox.missingGitFile();
  return [...(process.getuid?.() === 0 ? [rootWarning] : []), ...(missing === undefined ? [] : [gitWarning(missing)])];
}

const rootWarning =
  "the service runs as root: a command that leaves its sandbox owns this machine, and the kernel does not limit the number of its processes. Run it as a user, as toolgate install and the image do";

const gitWarning = (path: string) =>
  `git has no system file ${path} over which the sandbox could put its settings: a command that drops its environment (env -i) drops them. Create an empty one as root: touch ${path}`;

/** Creates a file for this user alone if it does not exist, since the sandbox can only hide what exists; returns false if it cannot. */
function createEmptyFile(path: string): boolean {
  try {
    mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
    closeSync(openSync(path, "a", 0o600));
    return true;
  } catch {
    return existsSync(path);
  }
}

/** The built-in tools, and what planning has to know of them. */
export interface BuiltInTools {
  tools: Tool[];
  supervisor: Supervisor;
  gitNames: GitHistory["namesOf"];
  confines: NonNullable<PlanningParts["confines"]>;
  close(): Promise<void>;
}

/** Of fewer descriptors none is left to sandboxes that wait. */
const fewDescriptors = 1_024;

/** Creates the built-in tools with the processes that they share. */
export function startBuiltInTools({
  sandbox,
  dataDirectory,
  replicaId,
  leaseMs,
  skills,
  agentNames,
  judgeIn,
  log,
  reportsDiagnostics,
  isOpen,
  ...code
}: {
  sandbox: Sandbox;
  dataDirectory: string;
  replicaId: string;
  leaseMs: number;
  skills: Skills;
  judgeIn: Parameters<typeof openLanguageServers>[1]["judgeIn"];
  log: Pick<Logger, "warn">;
  /** Returns the names of the agents, which are no skills. */
  agentNames(): readonly string[];
  reportsDiagnostics: boolean;
  /** Reports whether a session is not closed. */
  isOpen(session: string): Promise<boolean>;
} & Parameters<typeof openLanguageServers>[0]): BuiltInTools {
  const supervisor = createSupervisor({ replicaId, leaseMs });
  const pipes = createPipes();
  const history = createGitHistory({ sandbox, env: () => environmentOf({}) });
  const quarantine = createQuarantine(join(dataDirectory, "quarantine"));
  const servers = openLanguageServers(code, { sandbox, supervisor, judgeIn, log });
  // Each takes some, which commands must not lack.
  const spares = maxOpenFiles() < fewDescriptors ? undefined : createSpares({ sandbox, supervisor, pipes, isOpen });
  const tools = builtInTools({
    supervisor,
    sandbox,
    pipes,
    quarantine,
    spares,
    skills,
    agentNames,
    servers,
    reportsDiagnostics,
  }).map(boundTool);
  const bash = tools.find(({ name }) => name === "bash");
  return {
    gitNames: history.namesOf,
    // A tool file may have the name of a built-in tool.
    confines: (agent, tool = bash) => (tool === bash ? sandbox.wall(agent) : undefined),
    tools,
    supervisor,
    async close() {
      await servers.close();
      await spares?.close();
      await supervisor.close();
      await pipes.close();
      history.close();
    },
  };
}

/**
 * Offers the search tools for which the configuration names a provider. Returns the function that compares again with a
 * configuration that changed.
 */
export function offerSearchTools(registry: Pick<Registry, "register">, live: SearchSettings): () => void {
  const tools = searchTools(live);
  const offered = new Map<string, () => void>();
  function compare(): void {
    for (const name of ["websearch", "codesearch"] as const) {
      const withdraw = offered.get(name);
      if (live[name] === undefined) {
        withdraw?.();
        offered.delete(name);
      } else if (withdraw === undefined) offered.set(name, registry.register({ [name]: tools[name] }));
    }
  }
  compare();
  return compare;
}

/** Returns the built-in tools for their declarations alone: nothing is started or probed. */
export async function declaredTools(): Promise<Tool[]> {
  const off = { profile: "off", network: "open" } as const;
  const builtIn = builtInTools({
    supervisor: createSupervisor({ replicaId: "", leaseMs: 0 }),
    sandbox: await openSandbox({ wanted: off, agents: new Map(), writable: [], hidden: [] }),
    pipes: createPipes(),
    quarantine: undefined,
    skills: noSkills,
    agentNames: () => [],
    servers: unusedServers,
    reportsDiagnostics: false,
  });
  return [
    ...builtIn,
    ...subagentTools({ background: unusedCalls, subagents: unusedSubagents }),
    ...Object.values(searchTools({ websearch: undefined, codesearch: undefined })),
  ].map(boundTool);
}

const noSkills: Skills = {
  list: async () => [],
  load: async () => undefined,
  refresh: async () => {},
  problems: () => [],
};

/** Throws, as a part of a tool that is declared and never called. */
function unused(): never {
  throw new Error("this tool is only declared, and cannot be called");
}

const unusedServers: LanguageServers = {
  ...{ all: [], placeOf: unused, placeIn: unused, isRunning: unused, commandOf: unused, startAsks: unused },
  ...{ missing: unused, client: unused, running: unused, changed: unused, states: unused, close: unused },
};
const unusedSubagents = { check: unused, run: unused, startable: unused, durability: {} };
const unusedCalls = {
  ...{ start: unused, find: unused, wait: unused, shown: unused },
  ...{ lastTool: unused, openCalls: unused, cancel: unused },
};

/** The parts of a replica that run language servers. */
interface LanguageServerHost {
  sandbox: Sandbox;
  supervisor: Supervisor;
  /** Evaluates the rules of a workspace directory, apart from any agent and session. */
  judgeIn(workspaceRoot: string, directory: string): Judge;
  log: Pick<Logger, "warn">;
}

/** Creates the language servers of a replica. */
function openLanguageServers(
  { languageServers, workspaces, trustDirectory }: Pick<Config, "languageServers" | "workspaces" | "trustDirectory">,
  host: LanguageServerHost,
): LanguageServers {
  const trust = createTrust(trustDirectory);
  return createLanguageServers({
    settings: { languageServers },
    starter: createStarter(host),
    searchPath: commandSearchPath(),
    async isTrusted(root) {
      const directory = workspaces.get(root);
      return directory !== undefined && (await trust.get(directory).catch(() => undefined)) !== undefined;
    },
    warn: (message, { server, reason }) => host.log.warn(message, { args: { lsp: server }, reason }),
  });
}

/** Creates the part that starts language servers: they see the workspace, change nothing and reach no network. */
function createStarter({ sandbox, supervisor, judgeIn, log }: LanguageServerHost): ServerStarter {
  let count = 0;
  return {
    missingSandbox: () => sandbox.missing(""),
    isConfined: () => sandbox.confinement("").profile !== "off",
    async start({ name, argv, env, root, workspace, workspaceRoot, onStale }: ServerStart) {
      count += 1;
      const files = {
        rules: async () => judgeIn(workspaceRoot, workspace).fileRules(),
        onStale,
        onProblem: (error: unknown) =>
          log.warn("files of a language server cannot be checked", { args: { lsp: name }, error }),
      };
      return await startLastingProgram(
        { sandbox, supervisor },
        { call: { sessionId: "lsp", callId: `${name} ${count}` }, argv, env: environmentOf(env), files },
        { agent: "", cwd: root, workspace, readsOnly: true, directories: packagesOf(argv[0]) },
      ).catch((cause: unknown) => {
        if (!(cause instanceof TooManyMounts)) throw cause;
        throw new ToolFailure(
          `The language server ${name} is not started, since ${cause.message}: let rules name whole directories, or raise masks_max under [sandbox].`,
          { cause, hadNoEffects: true },
        );
      });
    },
  };
}

const packages = "/node_modules/";

/** Returns the directory of npm packages that a program lies in, since it may need its neighbours; none for another program. */
function packagesOf(program: string) {
  const path = realpathSync(program);
  const at = path.indexOf(packages);
  return at === -1 ? [] : [{ path: path.slice(0, at + packages.length - 1), isWritable: false, isCode: true }];
}
