import { randomUUID } from "node:crypto";
import {
  type BigIntStats,
  closeSync,
  constants,
  fchmodSync,
  fchownSync,
  fstatSync,
  fsync,
  ftruncateSync,
  lstatSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  writeFile,
  writeSync,
} from "node:fs";
import { rm } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { promisify } from "node:util";
import type { RunningCommands } from "../../sandbox/running-commands.ts";
import { ChangedAfterApproval, ToolFailure } from "../../tool/errors.ts";
import { inDirectory, maxSyncBytes, type OpenDirectory, openDirectory } from "../../tool/open-file.ts";
import type { ResolvedPath } from "../../tool/path-asks.ts";
import { temporaryName } from "./leftovers.ts";

/** Mode and owner of a file. */
export type FileOwnership = Pick<BigIntStats, "mode" | "uid" | "gid">;

/** Running commands, as far as changes of files have to do with them. */
export type CommandsMeanwhile = Pick<RunningCommands, "isMounted" | "wrote">;

/** Conditions of a replacement. */
export interface Replacement {
  /** File from which a moved one takes mode and owner. */
  like?: FileOwnership | undefined;
  /** Runs during the sync to disk; if it throws, nothing changes. */
  meanwhile?(): Promise<void>;
  running?: CommandsMeanwhile;
}

/**
 * Replaces a file in one step, with its mode and owner; creates missing directories. `before` is the state of the file when it
 * was read, undefined if there was none: if the file is another one now, nothing changes and it throws `ChangedAfterApproval`.
 * All work happens in the directory that was opened and checked, even if its path is replaced.
 *
 * A file that is mounted over for a running command is written in place, since the mount would stay with the former file and
 * uncover the new one. That is not one step: a crash may leave both mixed.
 */
export async function replaceFile(
  { absolute }: Pick<ResolvedPath, "absolute">,
  before: BigIntStats | undefined,
  content: Uint8Array,
  { like = before, meanwhile = async () => {}, running = noCommands }: Replacement = {},
): Promise<void> {
  const isMounted = () => before !== undefined && running.isMounted(absolute);
  try {
    // First, so that no command that ends meanwhile takes the file for its own.
    running.wrote(absolute);
    if (before !== undefined && isMounted()) return await overwrite(absolute, before, content, { like, meanwhile });
    using directory = await makeDirectory(dirname(absolute));
    const target = inDirectory(directory, absolute);
    const temporary = inDirectory(directory, temporaryName(randomUUID()));
    try {
      await writeNew(temporary, like, content, meanwhile);
      checkUntouched(target, absolute, before);
      directory.check();
      // A command may have started since.
      if (before !== undefined && isMounted()) {
        await rm(temporary);
        return await overwrite(absolute, before, content, { like, meanwhile: async () => {} });
      }
      renameSync(temporary, target);
    } catch (error) {
      await rm(temporary, { force: true }).catch(() => {});
      throw error;
    }
    // Otherwise a power cut could bring the former file back after the call was reported as completed.
    await directory.sync();
  } catch (error) {
    if (!(error instanceof Error && "code" in error)) throw error;
    throw new ToolFailure(`Cannot write ${absolute}: ${error.message}`, { cause: error });
  }
}

const noCommands: CommandsMeanwhile = { isMounted: () => false, wrote: () => {} };

/** Writes a file in place. If that fails, the former content is written back. */
async function overwrite(
  absolute: string,
  before: BigIntStats,
  content: Uint8Array,
  { like, meanwhile }: Required<Pick<Replacement, "like" | "meanwhile">>,
): Promise<void> {
  await meanwhile();
  using directory = openDirectory(dirname(absolute));
  const target = inDirectory(directory, absolute);
  const fd = openSync(target, constants.O_RDWR | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    checkUntouched(target, absolute, before);
    directory.check();
    if (fstatSync(fd, { bigint: true }).ino !== before.ino) throw changedMeanwhile(absolute);
    const former = readFileSync(fd);
    try {
      writeContent(fd, content);
      if (like !== undefined) adopt(fd, like);
      await sync(fd);
    } catch (error) {
      writeContent(fd, former);
      throw error;
    }
  } finally {
    closeSync(fd);
  }
}

function writeContent(fd: number, content: Uint8Array): void {
  for (let at = 0; at < content.length; ) at += writeSync(fd, content, at, content.length - at, at);
  ftruncateSync(fd, content.length);
}

/** A file that was renamed aside, in the same directory. */
export interface AsideFile {
  putBack(): Promise<void>;
  remove(): Promise<void>;
}

/** Renames a file aside in one step. If it is no longer `before`, nothing changes and it throws `ChangedAfterApproval`. */
export async function setAside({ absolute }: Pick<ResolvedPath, "absolute">, before: BigIntStats): Promise<AsideFile> {
  // It may become the only copy of the file, so its name must not match that of temporary files, which are removed.
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
        throw new ToolFailure(`${absolute} could not be put back; its content is in ${aside}`, { cause });
      }
    },
    async remove() {
      using directory = openDirectory(dirname(absolute));
      await rm(inDirectory(directory, aside), { force: true });
    },
  };
}

/** Opens a directory; creates it and its missing parents, each inside an open one. */
async function makeDirectory(absolute: string): Promise<OpenDirectory> {
  try {
    return openDirectory(absolute);
  } catch (error) {
    if (codeOf(error) !== "ENOENT") throw error;
  }
  using parent = await makeDirectory(dirname(absolute));
  try {
    mkdirSync(inDirectory(parent, absolute));
  } catch (error) {
    if (codeOf(error) !== "EEXIST") throw error;
  }
  await parent.sync();
  return openDirectory(absolute);
}

const codeOf = (error: unknown) => (error instanceof Error && "code" in error ? error.code : undefined);

const sync = promisify(fsync);
const writeLater = promisify(writeFile);

async function writeNew(
  temporary: string,
  like: FileOwnership | undefined,
  content: Uint8Array,
  meanwhile: () => Promise<void>,
): Promise<void> {
  const fd = openSync(temporary, "wx", like === undefined ? 0o666 : 0o600);
  try {
    if (like !== undefined) adopt(fd, like);
    if (content.length <= maxSyncBytes) writeWhole(fd, content);
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

function adopt(fd: number, before: FileOwnership): void {
  try {
    fchownSync(fd, Number(before.uid), Number(before.gid));
  } catch {
    // Only root may change the owner; for others the file becomes theirs, as with every editor that renames.
  }
  // Without setuid and setgid, which the kernel also clears when a file is written.
  fchmodSync(fd, Number(before.mode) & 0o777);
}

function checkUntouched(target: string, absolute: string, before: BigIntStats | undefined): void {
  const now = lstatSync(target, { bigint: true, throwIfNoEntry: false });
  const fields = ["dev", "ino", "size", "mtimeNs", "ctimeNs"] as const;
  if (fields.every((field) => now?.[field] === before?.[field])) return;
  throw changedMeanwhile(absolute);
}

const changedMeanwhile = (absolute: string) =>
  new ChangedAfterApproval(
    `${basename(absolute)} in ${dirname(absolute)} has changed since the call was approved. Read it and call the tool again.`,
  );
