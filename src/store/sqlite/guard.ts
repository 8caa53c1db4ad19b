import { randomBytes } from "node:crypto";
import { lstatSync, readlinkSync, renameSync, rmSync, statfsSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import type { Logger } from "../../core/logger.ts";
import { databaseName, guardName } from "./backup-form.ts";
import { readMeta, writesMeta } from "./database.ts";

/**
 * Guard of a database: a file beside it that names the state of the database. Both change together, every minute in which
 * something is written, so a database that was copied back does not match the guard, nor does the guard itself when it was
 * copied: it is a link, which no program copies in place. A whole disk that was set back is not noticed.
 */
export interface DatabaseGuard {
  /** True if the database is not the one that was last used here: it was copied back, or moved to another disk. */
  readonly isCopy: boolean;
  /** Changes database and guard; run inside a transaction. Returns the step that follows once the transaction is durable. */
  renew(): () => void;
}

/** Returns the path of the guard in a data directory. */
export const guardOf = (directory: string) => join(directory, guardName);

/** Replaces the guard by one that matches no database, before the files of a data directory are replaced. */
export function breakGuard(directory: string): void {
  placeGuard(directory, makeGuard(directory));
}

/** Compares a database with its guard; one that never had a guard matches. */
export function openGuard(db: DatabaseSync, directory: string): DatabaseGuard {
  const write = writesMeta(db, "guard");
  // The guard in the database and the one before it: a crash between the two changes leaves the earlier one in the file.
  const known = readMeta<readonly string[]>(db, "guard") ?? [];
  const isCopy = known.length > 0 && !known.includes(markOf(guardOf(directory)));
  return {
    isCopy,
    renew() {
      const next = makeGuard(directory);
      write([markOf(next), markOf(guardOf(directory))]);
      return () => placeGuard(directory, next);
    },
  };
}

/** Renews the guard now, and after each minute in which something was committed. Returns the function that ends this. */
export function maintainGuard(options: {
  db: DatabaseSync;
  guard: DatabaseGuard;
  commitCount: () => number;
  /** Writes further state of the minute, in the same transaction. */
  save: () => void;
  log: Logger | undefined;
}): () => void {
  const { db, guard, commitCount, save, log } = options;
  let renewedAt = -1;

  function renew(): void {
    if (commitCount() === renewedAt) return;
    renewedAt = commitCount();
    try {
      db.exec("BEGIN");
      const place = guard.renew();
      save();
      db.exec("COMMIT");
      place();
    } catch (error) {
      if (db.isOpen && db.isTransaction) db.exec("ROLLBACK");
      const fact = `the guard of ${databaseName} was not renewed: a database that is copied back may not be noticed`;
      log?.warn(fact, { error });
    }
  }

  renew();
  const timer = setInterval(renew, renewalMs);
  timer.unref();
  return () => clearInterval(timer);
}

const renewalMs = 60_000;

/** Makes the next guard under another name and returns its path. */
function makeGuard(directory: string): string {
  const path = `${guardOf(directory)}.new`;
  rmSync(path, { force: true });
  symlinkSync(`guard-${randomBytes(12).toString("hex")}`, path);
  return path;
}

function placeGuard(directory: string, path: string): void {
  renameSync(path, guardOf(directory));
}

/** Identifies a link by its text and its place on the disk; "" if there is none. A rename keeps it, a copy does not. */
function markOf(path: string): string {
  const found = lstatSync(path, { bigint: true, throwIfNoEntry: false });
  if (found === undefined || !found.isSymbolicLink()) return "";
  // File systems in user space may give files other numbers at each mount.
  const place = statfsSync(join(path, "..")).type === fuse ? "" : ` ${found.ino} ${found.birthtimeNs}`;
  return `${readlinkSync(path)}${place}`;
}

const fuse = 0x65735546;
