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
 * A file that is moved here brings mode and owner of `like`.
 */
export async function replaceFile(
  { absolute }: ResolvedPath,
  before: BigIntStats | undefined,
  content: Uint8Array,
  like = before,
): Promise<void> {
  try {
    await using folder = await makeFolder(dirname(absolute));
    const target = inFolder(folder, absolute);
    const temporary = inFolder(folder, `${dirname(absolute)}/.toolgate-${randomUUID()}`);
    try {
      await writeNew(temporary, like, content);
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

/** A file that is out of its place, under another name in the same folder. */
export interface AsideFile {
  putBack(): Promise<void>;
  remove(): Promise<void>;
}

/** Takes a file out of its place in one step; if it is another one than `before` by now, nothing changes and it throws `ChangedAfterApproval`. */
export async function setAside({ absolute }: ResolvedPath, before: BigIntStats): Promise<AsideFile> {
  const aside = `${dirname(absolute)}/.toolgate-${randomUUID()}`;
  try {
    await using folder = await openFolder(dirname(absolute));
    await checkUntouched(inFolder(folder, absolute), absolute, before);
    await folder.check();
    await rename(inFolder(folder, absolute), inFolder(folder, aside));
  } catch (error) {
    if (!(error instanceof Error && "code" in error)) throw error;
    throw new ToolFailure(`Cannot remove ${absolute}: ${error.message}`, { cause: error });
  }
  return {
    async putBack() {
      await using folder = await openFolder(dirname(absolute));
      await rename(inFolder(folder, aside), inFolder(folder, absolute));
    },
    async remove() {
      await using folder = await openFolder(dirname(absolute));
      await rm(inFolder(folder, aside), { force: true });
    },
  };
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

async function writeNew(temporary: string, like: BigIntStats | undefined, content: Uint8Array): Promise<void> {
  await using file = await open(temporary, "wx", like === undefined ? 0o666 : 0o600);
  if (like !== undefined) await adopt(file, like);
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
