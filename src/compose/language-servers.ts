import { realpathSync } from "node:fs";
import { createTrust } from "../bodies/processes/trust.ts";
import type { Config } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import { TooManyMounts } from "../sandbox/plan-files.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { Judge } from "../tool/tool.ts";
import { createLanguageServers, type LanguageServers } from "../tools/lsp/language-servers.ts";
import type { ServerStart, ServerStarter } from "../tools/lsp/server-program.ts";
import { commandSearchPath, environmentOf } from "../tools/process/command-environment.ts";
import type { Supervisor } from "../tools/process/supervisor.ts";
import { startLastingProgram } from "./lasting-program.ts";

/** The parts of a replica that run language servers. */
interface LanguageServerHost {
  sandbox: Sandbox;
  supervisor: Supervisor;
  /** Evaluates the rules of a workspace directory, apart from any agent and session. */
  judgeIn(workspaceRoot: string, directory: string): Judge;
  log: Pick<Logger, "warn">;
}

/** Creates the language servers of a replica. */
export function openLanguageServers(
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
      return directory !== undefined && (await trust.get(directory)) !== undefined;
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
  return at === -1 ? [] : [{ path: path.slice(0, at + packages.length - 1), isWritable: false }];
}
