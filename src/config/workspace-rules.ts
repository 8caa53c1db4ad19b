import { closeSync, constants, fstatSync, openSync, readFileSync, realpathSync, statSync } from "node:fs";
import { join, relative, sep } from "node:path";
import { PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { visible } from "../policy/display.ts";
import type { LayerRules } from "../policy/model.ts";
import { parseRules } from "../policy/parse-rules.ts";
import type { Rule } from "../policy/rules.ts";
import { checkToml, strictTable } from "./check.ts";
import { readIfThere, type Settings } from "./file.ts";
import { policyTables } from "./policy-tables.ts";
import type { Toml } from "./toml.ts";

/** Where a workspace may say how it wants to be treated. */
const workspaceFile = join(".opencode", "config.toml");

/** Whether a path names such a file. */
export const isWorkspaceFile = (path: string): boolean => path.endsWith(sep + workspaceFile);

/** Reads such a file as its author checks it; undefined if there is none. */
export function readWorkspaceSettings(file: string): { settings: Settings; lineOf: Toml["lineOf"] } | undefined {
  const text = readIfThere(file);
  if (text === undefined) return undefined;
  const { value: settings, lineOf } = checkToml(contents, text, file);
  return { settings, lineOf };
}

/** The rules of a workspace for one agent: a list for each policy file from the root down to the directory. */
export type WorkspaceRules = (workspace: { root: string; directory: string }, agent: string) => LayerRules[];

/**
 * Reads the policy files of workspaces, anew whenever one has changed. Nobody vouches for them, so what they say can only
 * narrow; and a file that cannot be used might have denied anything, so while it is there everything asks.
 */
export function createWorkspaceRules({ home }: { home: string }): WorkspaceRules {
  const known = new Map<string, PolicyFile>();
  /** Of the files looked at in this turn of the event loop: calls that come together look once. */
  const stamps = new Map<string, string | undefined>();

  function stampNow(file: string): string | undefined {
    if (stamps.has(file)) return stamps.get(file);
    if (stamps.size === 0) setImmediate(() => stamps.clear());
    const stamp = stampOf(file);
    stamps.set(file, stamp);
    return stamp;
  }

  function read(file: string, root: string): PolicyFile | undefined {
    const stamp = stampNow(file);
    if (stamp === undefined) return undefined;
    const before = known.get(file);
    if (before?.stamp === stamp && before.isOld) return before;
    const found = load(file, root, home);
    // The same text keeps its lists, since lists are compiled once.
    const same = before?.text !== undefined && before.text === found.text;
    const now = { ...(same ? before : found), stamp, isOld: found.isOld };
    if (known.size >= maxKnown) known.clear();
    known.set(file, now);
    return now;
  }

  return ({ root, directory }, agent) =>
    directoriesOf(root, directory).flatMap((level): LayerRules[] => {
      const file = join(level, workspaceFile);
      const found = read(file, root);
      if (found === undefined) return [];
      const problem = found.problem === undefined ? {} : { problem: found.problem };
      const source = visible(relative(root, file));
      return [{ layer: PermissionLayer.WORKSPACE, source, rules: found.rulesFor(agent), ...problem }];
    });
}

/** A policy file as it was read. */
interface PolicyFile {
  text: string | undefined;
  /** Why it cannot be used. */
  problem?: string;
  rulesFor(agent: string): readonly Rule[];
  /** What is different after a change. */
  stamp?: string;
  /** Whether a change after it was read would surely show in the stamp. */
  isOld: boolean;
}

const maxKnown = 1_000;
const maxBytes = 65_536;
/** File systems count time in ticks; two changes in one tick look like one. */
const tickMs = 1_000;
const contents = strictTable(policyTables);

/** The directories from the root of a workspace down to one in it. */
function directoriesOf(root: string, directory: string): string[] {
  const below = relative(root, directory)
    .split(sep)
    .filter((part) => part !== "");
  return [root, ...below.map((_, i) => join(root, ...below.slice(0, i + 1)))];
}

function stampOf(file: string): string | undefined {
  try {
    // Nearly always there is none, and an error would cost more than the look.
    const stats = statSync(file, { bigint: true, throwIfNoEntry: false });
    return stats && [stats.dev, stats.ino, stats.size, stats.mtimeNs, stats.ctimeNs].join();
  } catch (cause) {
    const code = codeOf(cause);
    // Below a file that is no directory there is nothing either.
    return code === "ENOENT" || code === "ENOTDIR" ? undefined : code;
  }
}

function load(file: string, root: string, home: string): PolicyFile {
  const shown = relative(root, file);
  let isOld = false;
  let text: string | undefined;
  try {
    const opened = openInside(file, root);
    try {
      const stats = fstatSync(opened);
      if (!stats.isFile()) throw new Error("it is not a regular file");
      if (stats.size > maxBytes) throw new Error(`it has ${stats.size} bytes, over the limit of ${maxBytes}`);
      isOld = Date.now() - stats.ctimeMs > tickMs;
      text = readFileSync(opened, "utf8");
    } finally {
      closeSync(opened);
    }
    return { text, isOld, rulesFor: rulesIn(text, shown, home) };
  } catch (cause) {
    const words = cause instanceof Error ? cause.message : String(cause);
    const problem = visible(
      (words.startsWith(shown) ? words : `${shown}: ${words}`).replace(/\s+/g, " ").slice(0, 500),
    );
    return { text, isOld, problem, rulesFor: () => none };
  }
}

/** Opens a file that lies in the workspace, symlinks looked through. It waits for no FIFO and follows nothing that was swapped in. */
function openInside(file: string, root: string): number {
  const path = realpathSync(file);
  if (!path.startsWith(root + sep)) throw new Error("it is a link that leads out of the workspace");
  return openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
}

function rulesIn(text: string, shown: string, home: string): PolicyFile["rulesFor"] {
  const { permission = {}, agent = {} } = checkToml(contents, text, shown).value;
  const own = parseRules(permission, "permission", home);
  const forAgents = new Map(
    Object.entries(agent).map(([name, { permission = {} }]) => [
      name,
      [...own, ...parseRules(permission, `agent.${name}.permission`, home)],
    ]),
  );
  return (name) => forAgents.get(name) ?? own;
}

const none: readonly Rule[] = [];

function codeOf(cause: unknown): string {
  return cause instanceof Error && "code" in cause ? String(cause.code) : String(cause);
}
