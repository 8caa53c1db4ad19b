import { createHash, randomBytes } from "node:crypto";
import { existsSync, mkdirSync, realpathSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { createTwoFilesPatch } from "diff";
import { readIfExists } from "../../core/read-if-exists.ts";
import { exitCodes } from "../exit-codes.ts";
import { CommandError } from "../failure/failure.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";

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

/** Makes the changes, each by a rename. Refuses all of them if a file changed since it was planned. */
export function applyChanges(changes: readonly PlannedChange[]): void {
  for (const { path, before } of changes) {
    if (readIfExists(path) === before) continue;
    throw new CommandError(
      `${path} has changed since the change was planned, so nothing was written`,
      "run the command again to see the new difference",
      exitCodes.failed,
    );
  }
  for (const change of changes) if (change.before !== change.after) applyChange(change);
}

function applyChange({ path, after, isSecret }: PlannedChange): void {
  if (after === undefined) {
    rmSync(path, { force: true });
    return;
  }
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  const mode = isSecret ? 0o600 : (statSync(path, { throwIfNoEntry: false })?.mode ?? 0o600) & 0o777;
  const next = `${path}.${randomBytes(4).toString("hex")}.new`;
  writeFileSync(next, after, { mode, flag: "wx", flush: true });
  renameSync(next, path);
}

/** Returns the SHA-256 of a text, hex. */
export function digestOfText(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}
