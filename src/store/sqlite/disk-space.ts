import { existsSync, rmSync, statfsSync, statSync } from "node:fs";
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import type { Logger } from "../../core/logger.ts";
import { databaseName } from "./backup-form.ts";
import { codeOf, isDamageCode, pragma } from "./database.ts";

/** Free space on the disk of a store: new work ends before the disk is full, so that open work can still end. */
export interface DiskSpace {
  /** True while new sessions and calls are refused. */
  isLow(): boolean;
  /** True while outputs lie on a disk that is full. */
  isOutputFull(): boolean;
  /** True if so many bytes of output leave enough for the records of open work. */
  holds(bytes: number): boolean;
  /** Measures the free space now instead of within a second. */
  measure(): void;
  /** Deletes the reserve file; returns false if there was none, or it cannot be deleted. */
  releaseReserve(): boolean;
  close(): Promise<void>;
}

/** The space of a store that is not watched. */
export const unlimitedSpace: DiskSpace = {
  isLow: () => false,
  isOutputFull: () => false,
  holds: () => true,
  measure() {},
  releaseReserve: () => false,
  close: async () => {},
};

/**
 * Watches the disk of a data directory. A reserve file is held there: when space runs out it is deleted, and its bytes serve the
 * records of rejects, expiries and ends. It is written again once there is space for it.
 */
export function watchDiskSpace({
  directory,
  outputs,
  minFreeBytes,
  log,
  onRelease,
}: {
  directory: string;
  /** Directory of outputs, which may lie on a separate disk. */
  outputs: string;
  /** Undefined: 64 MiB, or 5 % of a disk that is smaller than 1.3 GB. */
  minFreeBytes: number | undefined;
  log: Logger | undefined;
  /** Called when the reserve was deleted. */
  onRelease: () => void;
}): DiskSpace {
  const reserve = join(directory, "reserve");
  let free = Number.POSITIVE_INFINITY;
  let minFree = 0;
  let isLow = false;
  let isOutputFull = false;
  let hasReserve = statSync(reserve, { throwIfNoEntry: false })?.size === reserveBytes;
  let writing: Promise<void> | undefined;

  function measure(): void {
    try {
      const { bavail, bsize, blocks } = statfsSync(directory);
      free = bavail * bsize;
      minFree = minFreeBytes ?? Math.min(64 * mebibyte, blocks * bsize * 0.05);
      measureOutputs();
    } catch (error) {
      log?.warn("the free space of the data directory cannot be measured", { error, path: directory });
      return;
    }
    if (hasReserve && free < reserveBytes) releaseReserve();
    note(free < minFree + (hasReserve ? 0 : reserveBytes));
    if (!hasReserve && free >= minFree + 2 * reserveBytes) writing ??= writeReserve();
  }

  function measureOutputs(): void {
    // A new store has no outputs yet.
    const { bavail, bsize, blocks, files, ffree } = statfsSync(existsSync(outputs) ? outputs : directory);
    const isFull = bavail * bsize < Math.min(minOutputFree, blocks * bsize * 0.05) || (files > 0 && ffree === 0);
    if (isFull === isOutputFull) return;
    isOutputFull = isFull;
    const fields = { path: outputs, count: bavail * bsize };
    if (isFull) log?.error("the disk of outputs is full: results that are large cannot be stored", fields);
    else log?.warn("the disk of outputs has space again", fields);
  }

  function note(low: boolean): void {
    if (low === isLow) return;
    isLow = low;
    const fields = { path: directory, count: Math.floor(free) };
    if (low) {
      log?.error(
        `the disk of the store is almost full: new sessions and calls are refused until ${Math.ceil(minFree)} bytes and the reserve of ${reserveBytes} are free`,
        fields,
      );
    } else log?.warn("the disk of the store has space again: new calls are accepted", fields);
  }

  function releaseReserve(): boolean {
    if (!hasReserve) return false;
    hasReserve = false;
    try {
      rmSync(reserve, { force: true });
    } catch (error) {
      const fact = "the reserve of the data directory cannot be deleted: remove it, so that open calls can end";
      log?.error(fact, { error, path: reserve });
      return false;
    }
    log?.warn("the reserve of the data directory was released for the records of open calls", { path: reserve });
    onRelease();
    return true;
  }

  async function writeReserve(): Promise<void> {
    try {
      // Bytes that no file system compresses.
      await writeFile(reserve, crypto.getRandomValues(new Uint8Array(65_536)), { mode: 0o600 });
      for (let size = 65_536; size < reserveBytes; size += 65_536) {
        await writeFile(reserve, crypto.getRandomValues(new Uint8Array(65_536)), { flag: "a" });
      }
      hasReserve = true;
    } catch {
      await rm(reserve, { force: true }).catch(() => {});
    } finally {
      writing = undefined;
    }
  }

  const timer = setInterval(measure, 1_000);
  timer.unref();
  measure();
  return {
    isLow: () => isLow,
    isOutputFull: () => isOutputFull,
    holds(bytes) {
      free -= bytes;
      return free >= minOutputFree || !isLow;
    },
    measure,
    releaseReserve() {
      const released = releaseReserve();
      measure();
      return released;
    },
    async close() {
      clearInterval(timer);
      await writing;
    },
  };
}

const mebibyte = 1024 * 1024;
const reserveBytes = 4 * mebibyte;
/** Space that outputs leave to records. */
const minOutputFree = 2 * mebibyte;

/** Reads the sizes of a database and of its write-ahead log, in bytes. `free` is the part of the database that has no records. */
export function sizesOf(db: DatabaseSync, directory: string): { database: number; free: number; log: number } {
  const pageBytes = pragma(db, "page_size");
  const log = statSync(join(directory, `${databaseName}-wal`), { throwIfNoEntry: false });
  return {
    database: pragma(db, "page_count") * pageBytes,
    free: pragma(db, "freelist_count") * pageBytes,
    log: log?.size ?? 0,
  };
}

/**
 * Rewrites a database of an earlier version, which cannot give pages back, if the disk has space for that; otherwise a later start
 * does it. Takes up to three seconds for 100 MB.
 */
export function makeShrinkable(db: DatabaseSync, directory: string): void {
  if (pragma(db, "auto_vacuum") !== 0) return;
  const { bavail, bsize } = statfsSync(directory);
  if (bavail * bsize < 4 * sizesOf(db, directory).database) return;
  try {
    db.exec("PRAGMA auto_vacuum = INCREMENTAL; VACUUM");
    truncateLog(db);
  } catch (error) {
    // Without space for its temporary file the database stays as it is.
    if (isDamageCode(codeOf(error))) throw error;
  }
}

/** Gives a portion of the free pages back; run inside a transaction. Returns true if there may be more to give. */
export function giveBackPages(db: DatabaseSync): boolean {
  const before = pragma(db, "freelist_count");
  if (before <= retainedPages) return false;
  db.exec(`PRAGMA incremental_vacuum(${Math.min(before - retainedPages, portion)})`);
  return pragma(db, "freelist_count") < before;
}

/** Moves the write-ahead log into the database and truncates both files, if no backup reads them. */
export function truncateLog(db: DatabaseSync): void {
  try {
    db.exec("PRAGMA wal_checkpoint(TRUNCATE)");
  } catch {
    // The files stay as they are; the next checkpoint tries again.
  }
}

/** Free pages that stay for the next records: 4 MiB. */
const retainedPages = 1_024;
/** Pages that one transaction gives back. */
const portion = 1_024;
