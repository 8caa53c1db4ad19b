import { randomUUID } from "node:crypto";
import type { BigIntStats } from "node:fs";
import { type FileHandle, lstat, mkdir, open, rename, rm } from "node:fs/promises";
import { basename, dirname } from "node:path";
import { ChangedAfterApproval, ToolFailure } from "../tool/errors.ts";
import type { ResolvedPath } from "../tool/workspace.ts";
import { inFolder, openFolder } from "./open-file.ts";

/**
 * Puts a file in place in one step, with the mode and owner of the one it replaces; makes missing folders. `before` is that
 * file as it was looked at, absent if there was none: if it is another one by now, nothing changes and it throws
 * `ChangedAfterApproval`. All of it happens in the folder that was opened and checked, whatever takes the place of its path.
 */
export async function replaceFile(
  { absolute }: ResolvedPath,
  before: BigIntStats | undefined,
  content: Uint8Array,
): Promise<void> {
  try {
    await using folder = await makeFolder(dirname(absolute));
    const target = inFolder(folder, absolute);
    const temporary = inFolder(folder, `${dirname(absolute)}/.toolgate-${randomUUID()}`);
    try {
      await writeNew(temporary, before, content);
      await checkUntouched(target, absolute, before);
      await folder.check();
      await rename(temporary, target);
    } catch (error) {
      await rm(temporary, { force: true }).catch(() => {});
      throw error;
    }
  } catch (error) {
    if (!(error instanceof Error && "code" in error)) throw error;
    throw new ToolFailure(`Cannot write ${absolute}: ${error.message}`, { cause: error });
  }
}

/** Opens a folder, and makes it and those above it that are missing, each in the one that was opened before. */
async function makeFolder(absolute: string): ReturnType<typeof openFolder> {
  try {
    return await openFolder(absolute);
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "ENOENT")) throw error;
  }
  await using parent = await makeFolder(dirname(absolute));
  await mkdir(inFolder(parent, absolute)).catch((error: unknown) => {
    if (!(error instanceof Error && "code" in error && error.code === "EEXIST")) throw error;
  });
  return await openFolder(absolute);
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

async function checkUntouched(target: string, absolute: string, before: BigIntStats | undefined): Promise<void> {
  const now = await lstat(target, { bigint: true }).catch(() => undefined);
  const fields = ["dev", "ino", "size", "mtimeNs", "ctimeNs"] as const;
  if (fields.every((field) => now?.[field] === before?.[field])) return;
  throw new ChangedAfterApproval(
    `${basename(absolute)} in ${dirname(absolute)} has changed since the call was approved. Read it and call the tool again.`,
  );
}
