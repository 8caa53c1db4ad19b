import { statfsSync, statSync } from "node:fs";
import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { databaseName } from "./backup-form.ts";
import { codeOf, isDamageCode, pragma } from "./database.ts";

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
