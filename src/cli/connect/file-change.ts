import { createHash, randomBytes } from "node:crypto";
import { existsSync, mkdirSync, realpathSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { createTwoFilesPatch } from "diff";
import { readIfExists } from "../../core/read-if-exists.ts";
import { exitCodes } from "../exit-codes.ts";
import { CommandError } from "../failure/command-error.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";
import { type AgentUser, asAgentUser } from "./agent-user.ts";

/** A planned change of a file. */
export interface PlannedChange {
  /** Absolute, with links resolved. */
  readonly path: string;
  /** The text when the change was planned; undefined if the file did not exist. */
  readonly before: string | undefined;
  /** The text to write; undefined removes the file. */
  readonly after: string | undefined;
  /** True for a text that is not shown and that only its user may read. */
  readonly isSecret?: boolean;
  /** True for a file of root that every user may read; the others are files of the agent's user. */
  readonly isSystem?: boolean;
}

/** Returns the path with its links resolved; parts that do not exist yet stay as written. */
export function resolvedPath(path: string): string {
  if (existsSync(path)) return realpathSync(path);
  const parent = dirname(path);
  return parent === path ? path : join(resolvedPath(parent), basename(path));
}

/** Describes a change as a unified diff that is harmless to the terminal; of a secret only its path. */
export function diffOf({ path, before, after, isSecret }: PlannedChange): string {
  if (before === after) return "";
  if (isSecret)
    return `${after === undefined ? "remove" : "write"} ${terminalSafe(path)} (a token, only for its user)\n`;
  const names = [before === undefined ? "/dev/null" : path, after === undefined ? "/dev/null" : path] as const;
  return terminalSafe(
    createTwoFilesPatch(...names, before ?? "", after ?? "", undefined, undefined, { headerOptions }),
  );
}

const headerOptions = { includeIndex: false, includeUnderline: false, includeFileHeaders: true };

/** Makes the changes with the rights of their owners, each by a rename. Refuses all of them if a file changed since it was planned. */
export function applyChanges(changes: readonly PlannedChange[], user: AgentUser): void {
  const asOwner = <T>({ isSystem }: PlannedChange, work: () => T) => (isSystem ? work() : asAgentUser(user, work));
  for (const change of changes) {
    const { path, before } = change;
    if (asOwner(change, () => readIfExists(path)) === before) continue;
    throw new CommandError(
      `${path} has changed since the change was planned, so nothing was written`,
      "run the command again to see the new difference",
      exitCodes.failed,
    );
  }
  for (const change of changes) if (change.before !== change.after) asOwner(change, () => applyChange(change));
}

function applyChange({ path, after, isSecret, isSystem }: PlannedChange): void {
  if (after === undefined) {
    rmSync(path, { force: true });
    return;
  }
  // The agent has to read a file of the system, or it runs without our hooks.
  const mask = isSystem ? process.umask(0o022) : undefined;
  try {
    mkdirSync(dirname(path), { recursive: true, mode: isSystem ? 0o755 : 0o700 });
    const mode = (statSync(path, { throwIfNoEntry: false })?.mode ?? 0o600) & 0o777;
    const next = `${path}.${randomBytes(4).toString("hex")}.new`;
    writeFileSync(next, after, { mode: isSystem ? 0o644 : isSecret ? 0o600 : mode, flag: "wx", flush: true });
    renameSync(next, path);
  } finally {
    if (mask !== undefined) process.umask(mask);
  }
}

/** Returns the SHA-256 of a text, hex. */
export function digestOfText(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}
