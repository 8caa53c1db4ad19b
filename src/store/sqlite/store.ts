import { rmSync } from "node:fs";
import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import type { Store } from "../../call/ports.ts";
import type { Logger } from "../../core/logger.ts";
import { RequestError } from "../../core/request-error.ts";
import type { WorkerDirectory } from "../../core/worker-directory.ts";
import type { CredentialTable } from "../../people/ports.ts";
import { DamagedRecord } from "../checksum.ts";
import { sleepOfMachine } from "../clock-jump.ts";
import { openLoggedCredentialFile } from "../credential-file.ts";
import { StoreUnusable } from "../errors.ts";
import { createNewsListeners } from "../news-listeners.ts";
import { openRecordTable } from "../record-table-file.ts";
import { type RecordTables, recordKinds } from "../record-tables.ts";
import { storeFull } from "../refusals.ts";
import { type AdoptedCopy, applyAdoptCopy, type EndOpenCall } from "./adopt-copy.ts";
import { adoptJump } from "./adopt-jump.ts";
import { createSqliteAsks } from "./asks.ts";
import { createSqliteAudit } from "./audit.ts";
import { backUpSqlite, copiesOf } from "./backup.ts";
import { databaseName, outputDirectory } from "./backup-form.ts";
import { createSqliteCallRecords } from "./call-records.ts";
import { prepareCallStatements } from "./call-statements.ts";
import { openSqliteClock } from "./clock.ts";
import { type Commit, createCommit } from "./commit.ts";
import { codeOf, type Database, damagedDatabase, isDamageCode, openDatabase } from "./database.ts";
import { type DiskSpace, unlimitedSpace, watchDiskSpace } from "./disk-space.ts";
import { makeShrinkable, truncateLog } from "./free-pages.ts";
import { createSqliteGrants } from "./grants.ts";
import { guardOf, maintainGuard, openGuard } from "./guard.ts";
import { createDatabaseHealth } from "./health.ts";
import { createSqliteLog, type LogLimits } from "./log.ts";
import { createOpenCallTable } from "./open-calls.ts";
import { createSqliteOutputs } from "./outputs.ts";
import { type OpenedSqlite, sqliteCallStore, sqlitePermissionStore } from "./ports.ts";
import { createSqliteSessions } from "./sessions.ts";
import type { SqliteTables } from "./tables.ts";
import { createMemoryDirectory } from "./worker-directory.ts";

/**
 * Opens the embedded store in a data directory, which no other process can use meanwhile. Its clock is this machine's. Reads
 * see committed data only; each write is one transition.
 */
export async function openSqliteStore(options: SqliteOptions): Promise<SqliteStore> {
  const database = openDatabase(options.directory, options);
  try {
    return await openOn(database, options);
  } catch (error) {
    database.close();
    const path = join(options.directory, databaseName);
    const cause = error instanceof RequestError ? error.cause : error;
    const isDamage = cause instanceof DamagedRecord || isDamageCode(codeOf(cause));
    throw isDamage ? damagedDatabase(path, cause instanceof Error ? cause.message : "", cause) : error;
  }
}

/** Options of the embedded store. */
interface SqliteOptions {
  directory: string;
  /** Time of day, in ms since the epoch, which may jump. */
  clock?: () => number;
  /** Measures time, in ms. Default: a clock of the system that does not jump, or `clock`, if that is given. */
  uptime?: () => number;
  /** Time for which the machine slept so far, in ms. Default: that of the system, or none if `clock` is given. */
  sleep?: () => number;
  log?: Logger;
  limits?: LogLimits;
  /** Watches the free space of the disk and holds a reserve. Absent: neither. */
  space?: { minFreeBytes?: number | undefined };
  /** Returns the ends of the open calls of a copied database. Absent: such a database is refused. */
  endOpenCall?: EndOpenCall;
  /** Treats the database as a copy in any case. */
  isRestored?: boolean;
  /** Begins a new store although the directory has traces of another one. */
  newStore?: boolean;
}

async function openOn({ db, storeId, close }: Database, options: SqliteOptions): Promise<SqliteStore> {
  const { directory, log, limits = { events: 100_000, bytes: 16 * 1024 * 1024 } } = options;
  const { clock: wall = Date.now, uptime = options.clock ?? (() => performance.now()) } = options;
  const { sleep = options.clock ? () => 0 : sleepOfMachine } = options;
  makeShrinkable(db, directory);
  const guard = openGuard(db, directory);
  const isCopy = guard.isCopy || (options.isRestored ?? false);
  const { endOpenCall } = options;
  if (isCopy && endOpenCall === undefined) {
    const path = join(directory, databaseName);
    throw new StoreUnusable(`${path} does not match ${guardOf(directory)}: it was copied back`);
  }
  const credentials = openLoggedCredentialFile(directory, log);
  const records: RecordTables = {
    connectors: openRecordTable(directory, recordKinds.connectors),
    acceptedSources: openRecordTable(directory, recordKinds.acceptedSources),
    workerDeclarations: openRecordTable(directory, recordKinds.workerDeclarations),
    stops: openRecordTable(directory, recordKinds.stops),
    people: openRecordTable(directory, recordKinds.people),
    lastSeen: openRecordTable(directory, recordKinds.lastSeen),
  };
  const news = createNewsListeners();
  const space: DiskSpace =
    options.space === undefined
      ? unlimitedSpace
      : watchDiskSpace({
          ...{ directory, minFreeBytes: options.space.minFreeBytes, log },
          outputs: join(directory, outputDirectory),
          onRelease: () => shrinkLog(db),
        });
  const adoptJumps = () => void commit.run(() => {}).catch(() => {});
  const clock = openSqliteClock({ db, wall, uptime, sleep, onJump: () => setImmediate(adoptJumps) });
  const { now } = clock;
  const tables = openTables(db, limits, now, () => {
    if (space.isLow()) throw storeFull();
  });
  const beforeTransaction = () => adoptJump(tables, clock, log);
  const makeSpace = space.releaseReserve;
  const health = createDatabaseHealth(log);
  const commit = createCommit({ db, now, notify: news.notify, log, makeSpace, beforeTransaction, health });
  if (clock.jump() !== 0) await commit.run(() => {});
  const adopted = isCopy && endOpenCall ? await adoptCopy(tables, commit, endOpenCall, log) : undefined;
  const stopGuard = maintainGuard({ db, guard, commitCount: commit.count, save: clock.save, log });
  rmSync(copiesOf(directory), { recursive: true, force: true });
  const outputs = createSqliteOutputs(join(directory, outputDirectory), space.holds);
  const opened: OpenedSqlite = {
    ...{ storeId: adopted?.storeId ?? storeId, tables, commit, health, clock, log, news, outputs, space, directory },
    closeDatabase() {
      stopGuard();
      close();
    },
  };
  return {
    ...{ calls: sqliteCallStore(opened), permissions: sqlitePermissionStore(opened), outputs, credentials, ...records },
    workerDirectory: createMemoryDirectory(now),
    backUp: () => backUpSqlite({ health, db, directory, storeId: opened.storeId, now, holdOutputs: outputs.hold }),
    ...(adopted && { adopted }),
  };
}

/** The embedded store. */
export interface SqliteStore extends Store, RecordTables {
  credentials: CredentialTable;
  workerDirectory: WorkerDirectory;
  /** Yields the bytes of a backup. */
  backUp(): AsyncIterable<Uint8Array>;
  /** Set if the database was a copy. */
  adopted?: AdoptedCopy;
}

async function adoptCopy(
  tables: SqliteTables,
  commit: Commit,
  endOpenCall: EndOpenCall,
  log: Logger | undefined,
): Promise<AdoptedCopy> {
  const adopted = await commit.run((step) => applyAdoptCopy(tables, step, endOpenCall));
  const { storeId, calls, grants } = adopted;
  log?.error(
    `the database is not the one that was last used here: it was restored, copied back or moved. It is the store ${storeId} now; ${calls} open calls ended, ${grants} grants are suspended until \`toolgate grants confirm\` confirms them`,
  );
  return adopted;
}

/** Truncates the write-ahead log, if there is space for that, and does so more often from now on. */
function shrinkLog(db: DatabaseSync): void {
  db.exec("PRAGMA wal_autocheckpoint = 100");
  truncateLog(db);
}

function openTables(db: DatabaseSync, limits: LogLimits, now: () => number, checkSpace: () => void): SqliteTables {
  const sessions = createSqliteSessions(db, checkSpace);
  const log = createSqliteLog({ db, sessions, limits });
  const openCalls = createOpenCallTable(db, now());
  const records = createSqliteCallRecords({ db, sessions, openCalls, now });
  const asks = createSqliteAsks({ db, log, records });
  const audit = createSqliteAudit(db, sessions);
  const grants = createSqliteGrants({ db, sessions, log, audit });
  return { db, sessions, log, openCalls, records, asks, audit, grants, callSql: prepareCallStatements(db), checkSpace };
}
