import { existsSync } from "node:fs";
import { visible as shown } from "../../core/visible.ts";
import { isWithin } from "../../sandbox/is-within.ts";

/** Errors by which programs report that a path does not exist, or cannot be made. */
const absent =
  /No such file or directory|ENOENT|[Nn]ot found|[Dd]oes not exist|doesn't exist|FileNotFound|Read-only file system|EROFS/;
const absolutePath = /(?<![\w.~/-])\/[^\s'"`:;,()[\]{}<>|]+/g;
const maxChecked = 20;
const maxNoted = 3;

/**
 * Explains errors of a command about paths that exist on this machine and not in its sandbox, with the setting that shows them.
 * Undefined if its last output names none.
 */
export function explainUnseen(tail: string, visible: readonly string[]): string | undefined {
  const named = tail.split("\n").flatMap((line) => (absent.test(line) ? (line.match(absolutePath) ?? []) : []));
  const unseen = [...new Set(named)]
    .slice(0, maxChecked)
    .filter((path) => !visible.some((root) => isWithin(path, root)) && !isOfKernel.test(path) && existsSync(path));
  if (unseen.length === 0) return undefined;
  const paths = unseen.slice(0, maxNoted).map(shown).join(", ");
  return `${paths}: exists on this machine, but commands do not see it. Name the path in the command line, which asks external_directory, and in edits if the command changes it. The operator can show it to all commands by readable or writable under [sandbox].`;
}

const isOfKernel = /^\/(dev|proc)(\/|$)/;
