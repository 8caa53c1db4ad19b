import { basename, dirname, normalize, resolve } from "node:path";
import type { Ask } from "../core/ask.ts";
import { isPathKind } from "./rule-list.ts";
import { type Command, readCommands } from "./shell/command.ts";
import { foldCase, toSlashes } from "./wildcard.ts";

/** What no rule, grant or person opens to a tool. All paths are canonical. */
export interface Guard {
  dataDirectory: string;
  /** The data directory of the user's service, where that is another one. */
  serviceDirectory?: string;
  /** Absent where the server runs without one. */
  configFile?: string;
}

/** The folders and files of which the engine denies everything, folded. */
export function keptPaths(guard: Guard): string[] {
  return kept(guard).map(({ path }) => path);
}

function kept({ dataDirectory, serviceDirectory, configFile }: Guard): { path: string; what: string }[] {
  const places = [
    { path: dataDirectory, what: "Toolgate's data directory" },
    { path: serviceDirectory, what: "Toolgate's data directory" },
    { path: `/proc/${process.pid}`, what: "Toolgate's own process" },
    { path: configFile, what: "Toolgate's configuration" },
  ];
  return places.flatMap(({ path, what }) => (path === undefined ? [] : [{ path: foldCase(path), what }]));
}

/**
 * Makes the test for what the engine itself denies: it says why, or nothing. `at` is the place in the question's patterns,
 * `commands` what is already known of that one.
 */
export function createFileGuard(guard: Guard, home: string) {
  const places = kept(guard).map((place) => ({ ...place, spellings: spellings(place.path, foldCase(home)) }));

  function keptAt(path: string): string | undefined {
    const folded = foldCase(path);
    return places.find(({ path }) => folded === path || folded.startsWith(`${path}/`))?.what;
  }

  function ofPath(permission: string, path: string): string | undefined {
    if (!path.startsWith("/")) return permission === "edit" ? ofPolicyFile(path) : undefined;
    const what = keptAt(normalize(path));
    if (what) return `${path} belongs to ${what}, which no tool may touch`;
    return permission === "edit" ? ofPolicyFile(normalize(path)) : undefined;
  }

  function ofCommand(line: string, cwd: string | undefined, commands?: readonly Command[]): string | undefined {
    const folded = foldCase(line);
    const named = places.find(({ spellings }) => spellings.some((spelling) => isNamed(folded, spelling)));
    if (named) return `the command names ${named.what}, which no tool may touch`;
    if (cwd === undefined) return undefined;
    const around = keptAt(cwd);
    if (around) return `the command would run in ${around}, which no tool may touch`;
    const reached = (commands ?? readCommands(line)).flatMap(({ folder, uses }) =>
      uses.map(({ path }) => keptAt(resolve(cwd, folder, path))),
    );
    const what = reached.find((found) => found !== undefined);
    return what && `the command reaches into ${what}, which no tool may touch`;
  }

  return ({ permission, patterns, paths, cwd }: Ask, at: number, commands?: readonly Command[]) => {
    const pattern = patterns[at] ?? "";
    if (permission === "bash") return ofCommand(pattern, cwd, commands);
    const shown = permission === "external_directory" ? pattern.replace(/\/\*$/, "") : toSlashes(pattern);
    const refused = isPathKind(permission) ? ofPath(permission, shown) : undefined;
    return refused ?? ofPath(permission, paths?.[at] ?? "");
  };
}

/** Files that hold rules: who may edit them could widen what is allowed. */
function ofPolicyFile(path: string): string | undefined {
  const folded = foldCase(path);
  const name = basename(folded);
  const isPolicy = name === "toolgate.toml" || (name === "config.toml" && basename(dirname(folded)) === ".opencode");
  return isPolicy ? `${path} is a policy file, which no tool may edit` : undefined;
}

/** How a command line may write a path that lies in the home folder. */
function spellings(path: string, home: string): string[] {
  if (!path.startsWith(`${home}/`)) return [path];
  const rest = path.slice(home.length);
  return [path, ...["~", "$HOME", `\${HOME}`].map((start) => foldCase(start) + rest)];
}

/** Whether a line holds a path and not only the beginning of a longer name. */
function isNamed(line: string, path: string): boolean {
  for (let at = line.indexOf(path); at !== -1; at = line.indexOf(path, at + 1)) {
    if (!/[\w.-]/.test(line[at + path.length] ?? "")) return true;
  }
  return false;
}
