import { createHash } from "node:crypto";
import { closeSync, constants, fstatSync, openSync, readFileSync, realpathSync, statSync } from "node:fs";
import { join, relative, sep } from "node:path";
import { PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { visible } from "../core/visible.ts";
import type { LayerRules } from "../policy/model.ts";
import { parseRules, rulePaths } from "../policy/parse-rules.ts";
import type { Rule } from "../policy/rules.ts";
import { checkToml } from "./keys.ts";
import { type PolicySettings, policySchema } from "./schema.ts";
import { readIfThere } from "./sources.ts";
import type { Toml } from "./toml.ts";

/** The policy file of a workspace, relative to a directory. */
const workspaceFile = join(".opencode", "config.toml");

/** Checks if a path names a policy file of a workspace. */
export const isWorkspaceFile = (path: string): boolean => path.endsWith(sep + workspaceFile);

/** Reads a policy file for its author's check; undefined if it does not exist. */
export function readWorkspaceSettings(file: string): { settings: PolicySettings; lineOf: Toml["lineOf"] } | undefined {
  const text = readIfThere(file);
  if (text === undefined) return undefined;
  const { value: settings, lineOf } = checkToml(policySchema, text, file);
  return { settings, lineOf };
}

/** Returns the rules of a workspace for one agent: one list for each policy file from the root down to the directory. */
export type WorkspaceRules = (workspace: { root: string; directory: string }, agent: string) => LayerRules[];

/**
 * Creates the reader of policy files of workspaces; it reads a file again whenever that has changed. The files are not
 * trusted, so their rules can only narrow. An invalid file might deny anything, so everything asks until it is corrected.
 */
export function createWorkspaceRules({
  home,
  trustedPolicy = () => undefined,
}: {
  home: string;
  /** Returns the SHA-256 of the policy file that is trusted in the root of a workspace. */
  trustedPolicy?: (root: string) => string | undefined;
}): WorkspaceRules {
  const known = new Map<string, PolicyFile>();
  /** Stamps of the files checked in this turn of the event loop: concurrent calls check a file once. */
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
    // Equal text returns the same arrays: compiled rules are cached by the identity of the array.
    const same = before?.text !== undefined && before.text === found.text;
    const now = { ...(same ? before : found), stamp, isOld: found.isOld };
    if (known.size >= maxKnown) known.clear();
    known.set(file, now);
    return now;
  }

  return ({ root, directory }, agent) => {
    const files = directoriesOf(root, directory).map((level) => join(level, workspaceFile));
    const present = files.filter((file) => stampNow(file) !== undefined);
    if (present.length > maxFiles) return [tooManyFiles(present.length)];
    return present.flatMap((file): LayerRules[] => {
      const found = read(file, root);
      if (found === undefined) return [];
      const source = visible(relative(root, file));
      const isTrusted = file === files[0] && found.sha256 !== undefined && found.sha256 === trustedPolicy(root);
      const widens = isTrusted && found.problem === undefined ? ({ widens: true } as const) : {};
      const rules = found.rulesFor(agent);
      const refused = !isTrusted && rules.some(({ when }) => when) ? untrustedCondition(source) : undefined;
      const why = found.problem ?? refused;
      return [
        { layer: PermissionLayer.WORKSPACE, source, rules, ...(why !== undefined && { problem: why }), ...widens },
      ];
    });
  };
}

const untrustedCondition = (source: string) =>
  `${source}: a rule has a condition (when), which only the policy file of the root can have, once it is trusted: toolgate trust`;

function tooManyFiles(count: number): LayerRules {
  const problem = `${count} policy files from the root of the workspace down, over the limit of ${maxFiles}`;
  return { layer: PermissionLayer.WORKSPACE, source: visible(workspaceFile), rules: none, problem };
}

const maxFiles = 32;

/** A policy file in the cache. */
interface PolicyFile {
  text: string | undefined;
  sha256?: string;
  /** The reason why it is invalid. */
  problem?: string;
  rulesFor(agent: string): readonly Rule[];
  /** Differs after a change of the file. */
  stamp?: string;
  /** True if any change after the file was read shows in the stamp. */
  isOld: boolean;
}

const maxKnown = 1_000;
const maxBytes = 65_536;
/** The tick of file systems' timestamps: two changes in one tick have the same stamp. */
const tickMs = 1_000;

/** Returns the directories from the root of a workspace down to one in it. */
function directoriesOf(root: string, directory: string): string[] {
  const below = relative(root, directory)
    .split(sep)
    .filter((part) => part !== "");
  return [root, ...below.map((_, i) => join(root, ...below.slice(0, i + 1)))];
}

function stampOf(file: string): string | undefined {
  try {
    // Mostly there is no such file, and throwing would cost more than the check.
    const stats = statSync(file, { bigint: true, throwIfNoEntry: false });
    return stats && [stats.dev, stats.ino, stats.size, stats.mtimeNs, stats.ctimeNs].join();
  } catch (cause) {
    const code = codeOf(cause);
    // ENOTDIR: a parent is a file, so the policy file does not exist.
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
      isOld = Math.abs(Date.now() - stats.ctimeMs) > tickMs;
      text = readFileSync(opened, "utf8");
    } finally {
      closeSync(opened);
    }
    const sha256 = createHash("sha256").update(text).digest("hex");
    return { text, sha256, isOld, rulesFor: rulesIn(text, shown, home) };
  } catch (cause) {
    const words = cause instanceof Error ? cause.message : String(cause);
    const problem = visible(
      (words.startsWith(shown) ? words : `${shown}: ${words}`).replace(/\s+/g, " ").slice(0, 500),
    );
    return { text, isOld, problem, rulesFor: () => none };
  }
}

/** Opens a file inside the workspace, with symlinks resolved. Does not wait for a FIFO, and follows no link that replaced the file meanwhile. */
function openInside(file: string, root: string): number {
  const path = realpathSync(file);
  if (!path.startsWith(root + sep)) throw new Error("it is a link that leads out of the workspace");
  return openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
}

function rulesIn(text: string, shown: string, home: string): PolicyFile["rulesFor"] {
  const { permission = {}, agent } = checkToml(policySchema, text, shown).value;
  const own = parseRules(permission, "permission", home);
  const forAgents = new Map(
    Object.entries(agent).map(([name, { permission = {} }]) => [
      name,
      [...own, ...parseRules(permission, `agent.${name}.permission`, home)],
    ]),
  );
  return (name) => forAgents.get(name) ?? own;
}

/** Returns the line of a rule that the policy file of a workspace has for an agent, as the file is now. */
export function workspaceRuleLine(root: string, source: string, agent: string, index: number): number | undefined {
  const { text, problem } = load(join(root, source), root, "");
  if (text === undefined || problem !== undefined) return undefined;
  const { value, lineOf } = checkToml(policySchema, text, source);
  const own = (table: unknown, path: readonly string[]) => rulePaths(table ?? {}).map((rest) => [...path, ...rest]);
  const { permission, agent: agents } = value;
  const paths = [...own(permission, ["permission"]), ...own(agents[agent]?.permission, ["agent", agent, "permission"])];
  return paths[index] && lineOf(paths[index]);
}

const none: readonly Rule[] = [];

function codeOf(cause: unknown): string {
  return cause instanceof Error && "code" in cause ? String(cause.code) : String(cause);
}
