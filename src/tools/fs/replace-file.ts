import { randomUUID } from "node:crypto";
import {
  type BigIntStats,
  closeSync,
  fchmodSync,
  fchownSync,
  fsync,
  lstatSync,
  mkdirSync,
  openSync,
  renameSync,
  writeFile,
  writeSync,
} from "node:fs";
import { rm } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { promisify } from "node:util";
import { ChangedAfterApproval, ToolFailure } from "../../tool/errors.ts";
import type { ResolvedPath } from "../../tool/workspace.ts";
import { temporaryName } from "./leftovers.ts";
import { inDirectory, type OpenDirectory, openDirectory, smallFile } from "./open-file.ts";

/**
 * Puts a file in place in one step, with the mode and owner of the one it replaces; makes missing directories. `before` is that
 * file as it was looked at, absent if there was none: if it is another one by now, nothing changes and it throws
 * `ChangedAfterApproval`. All of it happens in the directory that was opened and checked, whatever takes the place of its path.
 * A file that is moved here brings mode and owner of `like`. `meanwhile` is done while the disk is at work; if it throws,
 * nothing changes.
 */
export async function replaceFile(
  { absolute }: ResolvedPath,
  before: BigIntStats | undefined,
  content: Uint8Array,
  { like = before, meanwhile = async () => {} }: { like?: BigIntStats; meanwhile?(): Promise<void> } = {},
): Promise<void> {
  try {
    using directory = makeDirectory(dirname(absolute));
    const target = inDirectory(directory, absolute);
    const temporary = inDirectory(directory, temporaryName(randomUUID()));
    try {
      await writeNew(temporary, like, content, meanwhile);
      checkUntouched(target, absolute, before);
      directory.check();
      renameSync(temporary, target);
    } catch (error) {
      await rm(temporary, { force: true }).catch(() => {});
      throw error;
    }
  } catch (error) {
    if (!(error instanceof Error && "code" in error)) throw error;
    throw new ToolFailure(`Cannot write ${absolute}: ${error.message}`, { cause: error });
  }
}

/** A file that is out of its place, under another name in the same directory. */
export interface AsideFile {
  putBack(): Promise<void>;
  remove(): Promise<void>;
}

/** Takes a file out of its place in one step; if it is another one than `before` by now, nothing changes and it throws `ChangedAfterApproval`. */
export async function setAside({ absolute }: ResolvedPath, before: BigIntStats): Promise<AsideFile> {
  // It may come to be all that is left of the file, so it has another name than what can be removed.
  const aside = join(dirname(absolute), `.toolgate-removed-${randomUUID()}`);
  try {
    using directory = openDirectory(dirname(absolute));
    checkUntouched(inDirectory(directory, absolute), absolute, before);
    directory.check();
    renameSync(inDirectory(directory, absolute), inDirectory(directory, aside));
  } catch (error) {
    if (!(error instanceof Error && "code" in error)) throw error;
    throw new ToolFailure(`Cannot remove ${absolute}: ${error.message}`, { cause: error });
  }
  return {
    async putBack() {
      try {
        using directory = openDirectory(dirname(absolute));
        renameSync(inDirectory(directory, aside), inDirectory(directory, absolute));
      } catch (cause) {
        throw new ToolFailure(`${absolute} could not be put back, and what was in it is in ${aside}`, { cause });
      }
    },
    async remove() {
      using directory = openDirectory(dirname(absolute));
      await rm(inDirectory(directory, aside), { force: true });
    },
  };
}

/** Opens a directory, and makes it and those above it that are missing, each in the one that was opened before. */
function makeDirectory(absolute: string): OpenDirectory {
  try {
    return openDirectory(absolute);
  } catch (error) {
    if (codeOf(error) !== "ENOENT") throw error;
  }
  using parent = makeDirectory(dirname(absolute));
  try {
    mkdirSync(inDirectory(parent, absolute));
  } catch (error) {
    if (codeOf(error) !== "EEXIST") throw error;
  }
  return openDirectory(absolute);
}

const codeOf = (error: unknown) => (error instanceof Error && "code" in error ? error.code : undefined);

const sync = promisify(fsync);
const writeLater = promisify(writeFile);

async function writeNew(
  temporary: string,
  like: BigIntStats | undefined,
  content: Uint8Array,
  meanwhile: () => Promise<void>,
): Promise<void> {
  const fd = openSync(temporary, "wx", like === undefined ? 0o666 : 0o600);
  try {
    if (like !== undefined) adopt(fd, like);
    if (content.length <= smallFile) writeWhole(fd, content);
    else await writeLater(fd, content);
    const both = await Promise.allSettled([sync(fd), meanwhile()]);
    for (const one of both) if (one.status === "rejected") throw one.reason;
  } finally {
    closeSync(fd);
  }
}

function writeWhole(fd: number, content: Uint8Array): void {
  for (let at = 0; at < content.length; ) at += writeSync(fd, content, at);
}

function adopt(fd: number, before: BigIntStats): void {
  try {
    fchownSync(fd, Number(before.uid), Number(before.gid));
  } catch {
    // Only root may give a file away; for others it becomes theirs, as with every editor that renames.
  }
  // Without setuid and setgid, as when the kernel sees a file written to.
  fchmodSync(fd, Number(before.mode) & 0o777);
}

function checkUntouched(target: string, absolute: string, before: BigIntStats | undefined): void {
  const now = lstatSync(target, { bigint: true, throwIfNoEntry: false });
  const fields = ["dev", "ino", "size", "mtimeNs", "ctimeNs"] as const;
  if (fields.every((field) => now?.[field] === before?.[field])) return;
  throw new ChangedAfterApproval(
    `${basename(absolute)} in ${dirname(absolute)} has changed since the call was approved. Read it and call the tool again.`,
  );
}
