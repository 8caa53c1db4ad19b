import { existsSync, readFileSync, realpathSync } from "node:fs";
import { dirname, extname, join } from "node:path";
import type { LanguageServer, ServerCommand } from "../../core/language-server.ts";
import { locateProgram } from "../../core/locate-program.ts";
import { isWithin } from "../../core/paths.ts";
import type { McpProgram } from "../../sources/mcp/program-transport.ts";

/** A language server, and the project for which it runs. */
export interface ServerPlace {
  readonly server: LanguageServer;
  /** Canonical root of the project: inside of the workspace, or the workspace. */
  readonly root: string;
  /** Canonical directory of the workspace. */
  readonly workspace: string;
  /** Name of the workspace root. */
  readonly workspaceRoot: string;
}

/** Finds the server for a file by its extension; the first one of the list. */
export function serverFor(servers: readonly LanguageServer[], path: string): LanguageServer | undefined {
  const extension = extname(path);
  return servers.find(({ languages }) => languages[extension] !== undefined);
}

/** Finds the root of the project of a file: the nearest directory with a marker, otherwise the workspace. */
export function projectRoot({ rootMarkers }: LanguageServer, path: string, workspace: string): string {
  for (let at = dirname(path); isWithin(at, workspace); at = dirname(at)) {
    if (rootMarkers.some((name) => existsSync(join(at, name)))) return at;
    if (at === workspace) break;
  }
  return workspace;
}

/** A command line whose program exists. */
export interface FoundCommand {
  readonly argv: readonly [string, ...string[]];
  /** True if the program lies in the workspace. */
  readonly isLocal: boolean;
}

/** Finds the command line of a server: programs of the project first, if they may be used, then those of the search path. */
export function findCommand(
  { server, root, workspace }: Pick<ServerPlace, "server" | "root" | "workspace">,
  { searchPath, usesLocal }: { searchPath: string; usesLocal: boolean },
): FoundCommand | undefined {
  for (const isLocal of usesLocal ? [true, false] : [false]) {
    const path = isLocal ? localPlaces(root, workspace).join(":") : searchPath;
    for (const { program, args, minMajor = 0 } of server.commands) {
      // A path that the configuration names is no program of the project.
      const found = isLocal && program.includes("/") ? undefined : locateProgram(program, path);
      if (found === undefined || majorOf(found, minMajor) < minMajor) continue;
      return { argv: [found, ...args], isLocal };
    }
  }
  return undefined;
}

/** Describes what is missing, such as `tsc (version 7 or newer)`. */
export function wantedPrograms(commands: readonly ServerCommand[]): string {
  return commands
    .map(({ program, minMajor }) => (minMajor === undefined ? program : `${program} (version ${minMajor} or newer)`))
    .join(", ");
}

/** Directories of the programs that a project has installed for itself. */
function localPlaces(root: string, workspace: string): string[] {
  const places: string[] = [];
  for (let at = root; isWithin(at, workspace); at = dirname(at)) {
    places.push(join(at, "node_modules/.bin"), join(at, ".venv/bin"));
    if (at === workspace) break;
  }
  return places;
}

/** Returns the major version of the npm package of a program; 0 if it is not known. Nothing is read if any will do. */
function majorOf(program: string, wanted: number): number {
  if (wanted === 0) return 0;
  try {
    const file = join(dirname(realpathSync(program)), "../package.json");
    const { version }: { version?: unknown } = JSON.parse(readFileSync(file, "utf8"));
    return Number.parseInt(String(version), 10) || 0;
  } catch {
    return 0;
  }
}

/** A started language server. */
export interface ServerProgram extends McpProgram {
  readonly pid: number;
}

/** A language server's command line, and the canonical directories in which it runs. */
export interface ServerStart {
  readonly name: string;
  readonly argv: readonly [string, ...string[]];
  /** Variables that it gets in addition to those of commands. */
  readonly env: Readonly<Record<string, string>>;
  /** The root of the project. */
  readonly root: string;
  readonly workspace: string;
  /** Name of the workspace root. */
  readonly workspaceRoot: string;
  /** Called if rules or files change so that the program reaches what it may not; it has to be started again. */
  onStale(reason: string): void;
}

/** Starts language servers, behind the wall where there is one. */
export interface ServerStarter {
  /** Returns the reason why they would run without the sandbox that is configured; undefined if they do not. */
  missingSandbox(): string | undefined;
  /** True if they run in a sandbox. */
  isConfined(): boolean;
  start(request: ServerStart): Promise<ServerProgram>;
}
