import { closeSync, existsSync, mkdirSync, openSync } from "node:fs";
import { dirname, join } from "node:path";
import { type Config, ConfigError } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import type { SearchSettings } from "../core/search-providers.ts";
import { openSandbox, type Sandbox } from "../sandbox/sandbox.ts";
import type { Registry } from "../tool/registry.ts";
import type { Skills } from "../tool/skills/skills.ts";
import type { Tool } from "../tool/tool.ts";
import { builtInTools, searchTools, subagentTools } from "../tools/index.ts";
import { createPipes } from "../tools/process/pipe.ts";
import { createSupervisor, type Supervisor } from "../tools/process/supervisor.ts";

/** Opens the configured sandbox. If it cannot start: refuses where the configuration requires it, otherwise logs a warning. */
export async function startSandbox(
  { sandbox: wanted, dataDirectory, serviceDirectory, loginFile }: Config,
  log: Logger,
): Promise<Sandbox> {
  const hasLoginFile = loginFile !== undefined && createEmptyFile(loginFile);
  const hasServiceDirectory = serviceDirectory !== undefined && existsSync(serviceDirectory);
  const sandbox = await openSandbox({
    wanted,
    agents: wanted.agents,
    writable: wanted.writable,
    maxMasks: wanted.maxMasks,
    temporary: join(dataDirectory, "tmp"),
    hidden: [
      { path: dataDirectory, kind: "directory" as const },
      ...(hasServiceDirectory ? [{ path: serviceDirectory, kind: "directory" as const }] : []),
      ...(hasLoginFile ? [{ path: loginFile, kind: "file" as const }] : []),
      ...wanted.hidden.map((path) => ({ path, kind: "file" as const })),
    ],
  });
  if (wanted.hasBooleanNetwork) log.warn(booleanNetwork);
  if (sandbox.problem === undefined) {
    if (process.getuid?.() === 0 && sandbox.state.profile !== "off") log.warn(rootWarning);
    return sandbox;
  }
  if (wanted.required) throw new ConfigError(`the sandbox that is configured cannot start: ${sandbox.problem}`);
  log.warn(`commands run without a sandbox: ${sandbox.problem}`);
  return sandbox;
}

const booleanNetwork =
  'network under [sandbox] is no boolean any more: true now means "proxy", which reaches only hosts that rules or a person allow, and false means "none". Write one of "proxy", "none" and "open"';

const rootWarning =
  "the service runs as root: the kernel does not limit the number of processes of commands. Run it as a user, as toolgate install does";

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

/** Creates the built-in tools with the processes that they share. */
export function startBuiltInTools({
  sandbox,
  replicaId,
  leaseMs,
  skills,
  agentNames,
}: {
  sandbox: Sandbox;
  replicaId: string;
  leaseMs: number;
  skills: Skills;
  /** Returns the names of the agents, which are no skills. */
  agentNames(): readonly string[];
}): { tools: Tool[]; supervisor: Supervisor; close(): Promise<void> } {
  const supervisor = createSupervisor({ replicaId, leaseMs });
  const pipes = createPipes();
  return {
    tools: builtInTools({ supervisor, sandbox, pipes, skills, agentNames }),
    supervisor,
    async close() {
      await supervisor.close();
      await pipes.close();
      sandbox.close();
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
    skills: noSkills,
    agentNames: () => [],
  });
  return [
    ...builtIn,
    ...subagentTools({ background: unusedCalls, subagents: unusedSubagents }),
    ...Object.values(searchTools({ websearch: undefined, codesearch: undefined })),
  ];
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

const unusedSubagents = { check: unused, run: unused, startable: unused };
const unusedCalls = {
  ...{ start: unused, find: unused, wait: unused, shown: unused },
  ...{ lastTool: unused, openCalls: unused, cancel: unused },
};
