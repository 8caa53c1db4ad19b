import { basename, dirname, normalize, resolve } from "node:path";
import type { Ask } from "../core/ask.ts";
import { isPathKind } from "./rule-list.ts";
import { type Command, readCommands } from "./shell/command.ts";
import { foldCase, toSlashes } from "./wildcard.ts";

/** The paths that are denied to every tool, whatever rules, grants and approvers say. All paths are canonical. */
export interface Guard {
  dataDirectory: string;
  /** The data directory of this user's service, if it differs from `dataDirectory`. */
  serviceDirectory?: string;
  /** Absent if the service runs without a configuration file. */
  configFile?: string;
  /** The file with the rules that are tried beside those of the configuration. */
  shadowFile?: string;
  /** The file of the credentials with which this user's terminals are signed in. */
  loginFile?: string;
}

/** Denies what the engine itself protects: returns the reason, or undefined. `at` is the place in the ask's patterns, `commands` that pattern as already analysed. */
export type FileGuard = (ask: Ask, at: number, commands?: readonly Command[]) => string | undefined;

/** Lists the directories and files that the engine denies, with their case folded. */
export function deniedPaths(guard: Guard): string[] {
  return deniedPlaces(guard).map(({ path }) => path);
}

function deniedPlaces({
  dataDirectory,
  serviceDirectory,
  configFile,
  shadowFile,
  loginFile,
}: Guard): { path: string; what: string }[] {
  const places = [
    { path: dataDirectory, what: "Toolgate's data directory" },
    { path: serviceDirectory, what: "Toolgate's data directory" },
    { path: `/proc/${process.pid}`, what: "Toolgate's own process" },
    { path: configFile, what: "Toolgate's configuration" },
    { path: shadowFile, what: "Toolgate's configuration" },
    { path: loginFile, what: "Toolgate's stored sign-ins" },
  ];
  return places.flatMap(({ path, what }) => (path === undefined ? [] : [{ path: foldCase(path), what }]));
}

/** Creates the guard of the engine's own files. */
export function createFileGuard(guard: Guard, home: string): FileGuard {
  const places = deniedPlaces(guard).map((place) => ({ ...place, spellings: spellings(place.path, foldCase(home)) }));

  function ownerOf(path: string): string | undefined {
    const folded = foldCase(path);
    return places.find(({ path }) => folded === path || folded.startsWith(`${path}/`))?.what;
  }

  function checkPath(permission: string, path: string): string | undefined {
    if (!path.startsWith("/")) return permission === "edit" ? checkPolicyFile(path) : undefined;
    const what = ownerOf(normalize(path));
    if (what) return `${path} belongs to ${what}, which no tool may touch`;
    return permission === "edit" ? checkPolicyFile(normalize(path)) : undefined;
  }

  function checkCommand(line: string, cwd: string | undefined, commands?: readonly Command[]): string | undefined {
    const folded = foldCase(line);
    const named = places.find(({ spellings }) => spellings.some((spelling) => isNamed(folded, spelling)));
    if (named) return `the command names ${named.what}, which no tool may touch`;
    if (cwd === undefined) return undefined;
    const around = ownerOf(cwd);
    if (around) return `the command would run in ${around}, which no tool may touch`;
    const reached = (commands ?? readCommands(line)).flatMap(({ directory, uses }) =>
      uses.map(({ path }) => ownerOf(resolve(cwd, directory, path))),
    );
    const what = reached.find((found) => found !== undefined);
    return what && `the command reaches into ${what}, which no tool may touch`;
  }

  return ({ permission, patterns, paths, cwd }, at, commands) => {
    const pattern = patterns[at] ?? "";
    if (permission === "bash") return checkCommand(pattern, cwd, commands);
    const shown = permission === "external_directory" ? pattern.replace(/\/\*$/, "") : toSlashes(pattern);
    const refused = isPathKind(permission) ? checkPath(permission, shown) : undefined;
    return refused ?? checkPath(permission, paths?.[at] ?? "");
  };
}

/** Denies edits of files that hold rules: an edit could widen what is allowed. */
function checkPolicyFile(path: string): string | undefined {
  const folded = foldCase(path);
  const name = basename(folded);
  const isPolicy = name === "toolgate.toml" || (name === "config.toml" && basename(dirname(folded)) === ".opencode");
  return isPolicy ? `${path} is a policy file, which no tool may edit` : undefined;
}

/** The spellings by which a command line may name a path, with its home directory also as `~` or `$HOME`. */
function spellings(path: string, home: string): string[] {
  if (!path.startsWith(`${home}/`)) return [path];
  const rest = path.slice(home.length);
  return [path, ...["~", "$HOME", `\${HOME}`].map((start) => foldCase(start) + rest)];
}

/** Checks if a line contains a path, and not only the beginning of a longer name. */
function isNamed(line: string, path: string): boolean {
  for (let at = line.indexOf(path); at !== -1; at = line.indexOf(path, at + 1)) {
    if (!/[\w.-]/.test(line[at + path.length] ?? "")) return true;
  }
  return false;
}
