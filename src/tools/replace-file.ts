import { randomUUID } from "node:crypto";
import type { BigIntStats } from "node:fs";
import { type FileHandle, lstat, mkdir, open, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { ChangedAfterApproval, ToolFailure } from "../tool/errors.ts";
import type { ResolvedPath, Workspace } from "../tool/workspace.ts";

/**
 * Puts a file in place in one step, with the mode and owner of the one it replaces; makes missing folders. `before` is that
 * file as it was looked at, absent if there was none: if it is another one by now, nothing changes and it throws `ChangedAfterApproval`.
 */
export async function replaceFile(
  workspace: Workspace,
  path: ResolvedPath,
  before: BigIntStats | undefined,
  content: Uint8Array,
): Promise<void> {
  const folder = dirname(path.absolute);
  const temporary = join(folder, `.toolgate-${randomUUID()}`);
  try {
    await checkPlace(workspace, path);
    await mkdir(folder, { recursive: true });
    await writeNew(temporary, before, content);
    await checkPlace(workspace, path);
    await checkUntouched(path, before);
    await rename(temporary, path.absolute);
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => {});
    if (!(error instanceof Error && "code" in error)) throw error;
    throw new ToolFailure(`Cannot write ${path.absolute}: ${error.message}`, { cause: error });
  }
}

async function writeNew(temporary: string, before: BigIntStats | undefined, content: Uint8Array): Promise<void> {
  await using file = await open(temporary, "wx", before === undefined ? 0o666 : 0o600);
  if (before !== undefined) await adopt(file, before);
  await file.writeFile(content);
  await file.sync();
}

async function adopt(file: FileHandle, before: BigIntStats): Promise<void> {
  // Only root may give a file away; for others it becomes theirs, as with every editor that renames.
  await file.chown(Number(before.uid), Number(before.gid)).catch(() => {});
  // Without setuid and setgid, as when the kernel sees a file written to.
  await file.chmod(Number(before.mode) & 0o777);
}

async function checkPlace(workspace: Workspace, { absolute }: ResolvedPath): Promise<void> {
  const now = await workspace.resolve(absolute);
  if (now.absolute === absolute) return;
  throw new ChangedAfterApproval(`${absolute} now leads to ${now.absolute}. Call the tool again.`);
}

async function checkUntouched({ absolute }: ResolvedPath, before: BigIntStats | undefined): Promise<void> {
  const now = await lstat(absolute, { bigint: true }).catch(() => undefined);
  const fields = ["dev", "ino", "size", "mtimeNs", "ctimeNs"] as const;
  if (fields.every((field) => now?.[field] === before?.[field])) return;
  throw new ChangedAfterApproval(
    `${absolute} has changed since the call was approved. Read it and call the tool again.`,
  );
}
