import { createHash } from "node:crypto";
import { rmSync } from "node:fs";
import { mkdir, open, readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { backup, type DatabaseSync } from "node:sqlite";
import { Readable } from "node:stream";
import { setTimeout } from "node:timers/promises";
import { clone } from "@bufbuild/protobuf";
import { packTar, type TarSource } from "modern-tar/fs";
import { type WorkerProcess, WorkerProcessSchema } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { Logger } from "../../core/logger.ts";
import { RequestError } from "../../core/request-error.ts";
import { type WorkerDirectory, workerIdOf } from "../../core/worker-directory.ts";
import { openLoggedCredentialFile } from "../credential-file.ts";
import { StoreUnusable } from "../errors.ts";
import { DamagedRecord, type NoteDamage } from "../parts.ts";
import { createNewsListeners } from "../recent-events.ts";
import { openRecordTable, openRecordTables, type ServiceStore } from "../record-tables.ts";
import { storeFull } from "../refusals.ts";
import { auditDays, auditRetention, jumpInWords, sleepOfMachine } from "../retention.ts";
import { type AdoptedCopy, applyAdoptCopy, type EndOpenCall } from "./adopt-copy.ts";
import { type BackupManifest, databaseName, manifestName, outputDirectory } from "./backup-form.ts";
import { openTables, type SqliteTables } from "./call-statements.ts";
import { openSqliteClock, type SqliteClock } from "./clock.ts";
import { type Commit, createCommit, createDatabaseHealth, type DatabaseHealth, unavailable } from "./commit.ts";
import { codeOf, type Database, damagedDatabase, isDamageCode, openDatabase } from "./database.ts";
import { type DiskSpace, makeShrinkable, truncateLog, unlimitedSpace, watchDiskSpace } from "./disk-space.ts";
import { guardOf, maintainGuard, openGuard } from "./guard.ts";
import type { LogLimits } from "./log.ts";
import { createSqliteOutputs } from "./outputs.ts";
import {
  type OpenedSqlite,
  sqliteCallStore,
  sqliteExportStore,
  sqliteNoticeStore,
  sqlitePermissionStore,
} from "./ports.ts";

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
  /** Names of the receivers of the audit, and days for which retention waits for them. */
  receivers?: readonly string[];
  auditMaxDays?: number | undefined;
  /** Treats the database as a copy in any case. */
  isRestored?: boolean;
  /** Days for which the audit is retained. */
  auditDays?: number | undefined;
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
  const records = await openRecordTables(async (kind) => openRecordTable(directory, kind));
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
  const tables = openTables(db, { limits, receivers: options.receivers ?? [], now }, () => {
    if (space.isLow()) throw storeFull();
  });
  const health = createDatabaseHealth(log);
  const beforeTransaction = () => adoptJump(tables, clock, log, health.refusalOf);
  const makeSpace = space.releaseReserve;
  const commit = createCommit({ db, now, notify: news.notify, log, makeSpace, beforeTransaction, health });
  if (clock.jump() !== 0) await commit.run(() => {});
  await commit.run(tables.exports.begin);
  const adopted = isCopy && endOpenCall ? await adoptCopy(tables, commit, endOpenCall, log) : undefined;
  const stopGuard = maintainGuard({ db, guard, commitCount: commit.count, save: clock.save, log });
  rmSync(copiesOf(directory), { recursive: true, force: true });
  const outputs = createSqliteOutputs(join(directory, outputDirectory), space.holds);
  const opened: OpenedSqlite = {
    ...{ storeId: adopted?.storeId ?? storeId, tables, commit, health, clock, log, news, outputs, space, directory },
    ...auditRetention(options, auditDays.sqlite),
    closeDatabase() {
      stopGuard();
      close();
    },
  };
  return {
    ...{
      calls: sqliteCallStore(opened),
      permissions: sqlitePermissionStore(opened),
      notices: sqliteNoticeStore(opened),
      exports: sqliteExportStore(opened),
      outputs,
      credentials,
      ...records,
    },
    workerDirectory: createMemoryDirectory(now),
    backUp: () => backUpSqlite({ health, db, directory, storeId: opened.storeId, now, holdOutputs: outputs.hold }),
    ...(adopted && { adopted }),
  };
}

/** The embedded store. */
export interface SqliteStore extends ServiceStore {
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

/**
 * Adopts a jump of the clock in a separate transaction. Open permission requests keep their remaining time, and so do open
 * calls: all their deadlines move with the clock.
 */
function adoptJump(
  {
    db,
    asks,
    notices,
    callSql,
    openCalls,
    records,
  }: Pick<SqliteTables, "db" | "asks" | "notices" | "callSql" | "openCalls" | "records">,
  clock: SqliteClock,
  log: Logger | undefined,
  note: NoteDamage,
): void {
  const by = clock.jump();
  if (by === 0) return;
  let forget = () => {};
  db.exec("BEGIN");
  try {
    asks.postpone(by, note);
    notices.postpone(by);
    callSql.postponeQueues.run(by);
    for (const { ordinal } of openCalls.all()) records.postpone(ordinal, by, note);
    forget = clock.adopt();
    db.exec("COMMIT");
  } catch (error) {
    forget();
    if (db.isTransaction) db.exec("ROLLBACK");
    throw error;
  }
  openCalls.postpone(by);
  const fact = `the clock of this machine jumped by ${jumpInWords(by)}: deadlines of open calls and permission requests move with it`;
  const rest = clock.untrustedMs();
  if (rest === 0) log?.warn(fact);
  else
    log?.error(
      `${fact}. Nothing is removed because of ${jumpInWords(rest)} of it: if the time is right now, restart the service; otherwise correct the clock`,
    );
}

/** Returns the directory of temporary copies of the database. */
const copiesOf = (directory: string) => join(directory, "backup");

/**
 * Yields a backup as a tar file. The database is copied in small steps between which transactions go on; the copy is that of the
 * moment at which the last step ends. Outputs follow it: their bytes are on disk before a record names them, so those of each
 * record are there. `holdOutputs` keeps them from being removed until the function that it returns is called.
 */
export async function* backUpSqlite(options: {
  health: Pick<DatabaseHealth, "damage">;
  db: DatabaseSync;
  directory: string;
  storeId: string;
  now: () => number;
  holdOutputs: () => () => void;
}): AsyncGenerator<Uint8Array> {
  const { health, db, directory, storeId, now, holdOutputs } = options;
  const damage = health.damage();
  if (damage !== undefined) throw damage;
  const place = join(copiesOf(directory), crypto.randomUUID());
  const copy = join(place, databaseName);
  const release = holdOutputs();
  try {
    await mkdir(place, { recursive: true, mode: 0o700 });
    await copyDatabase(db, copy);
    const files = [await sizedFile(databaseName, copy)];
    const outputs = join(directory, outputDirectory);
    for (const root of await namesIn(outputs)) {
      for (const id of await namesIn(join(outputs, root))) {
        files.push(await sizedFile(`${outputDirectory}/${root}/${id}`, join(outputs, root, id)));
      }
    }
    for await (const bytes of packTar(entriesOf(files, { format: 1, storeId, created: now(), entries: {} })))
      yield bytes;
  } catch (error) {
    throw error instanceof Error && "code" in error ? unavailable(error) : error;
  } finally {
    release();
    await rm(place, { recursive: true, force: true });
  }
}

/**
 * Copies the database. Node fails with "not an error" if the first step meets a transaction of this thread, since it waits for
 * that only once it knows how many pages remain. Nothing was copied yet, so the copy begins again.
 */
async function copyDatabase(db: DatabaseSync, copy: string): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      await backup(db, copy);
      return;
    } catch (error) {
      const isBusy = error instanceof Error && "errcode" in error && error.errcode === 0;
      if (!isBusy || attempt === maxAttempts) throw error;
      await setTimeout(10);
    }
  }
}

const maxAttempts = 500;

/** A file of a backup with the size that it had first; what is appended later is left out. */
interface SizedFile {
  name: string;
  path: string;
  size: number;
}

async function sizedFile(name: string, path: string): Promise<SizedFile> {
  return { name, path, size: (await stat(path)).size };
}

/** Lists the entries: each file, then the manifest, whose size is known before its hashes are. */
function entriesOf(files: readonly SizedFile[], manifest: BackupManifest): TarSource[] {
  for (const { name, size } of files) manifest.entries[name] = { bytes: size, sha256: "0".repeat(64) };
  const encode = () => Buffer.from(`${JSON.stringify(manifest, null, 1)}\n`);
  async function* encoded() {
    yield encode();
  }
  return [
    ...files.map((file) => entry(file.name, file.size, hashed(file, manifest))),
    entry(manifestName, encode().byteLength, encoded()),
  ];
}

function entry(target: string, size: number, content: AsyncIterable<Uint8Array>): TarSource {
  return { type: "stream", target, size, content: Readable.from(content), mode: 0o600 };
}

/** Yields a file's bytes and writes their hash to the manifest. */
async function* hashed({ name, path, size }: SizedFile, manifest: BackupManifest): AsyncGenerator<Uint8Array> {
  const hash = createHash("sha256");
  const file = await open(path, "r");
  try {
    for (let at = 0; at < size; ) {
      const { buffer, bytesRead } = await file.read(Buffer.allocUnsafe(Math.min(chunkBytes, size - at)), {
        position: at,
      });
      if (bytesRead === 0) throw unavailable(new Error(`${name} became shorter while it was backed up`));
      const bytes = buffer.subarray(0, bytesRead);
      hash.update(bytes);
      at += bytesRead;
      yield bytes;
    }
  } finally {
    await file.close();
  }
  manifest.entries[name] = { bytes: size, sha256: hash.digest("hex") };
}

async function namesIn(directory: string): Promise<string[]> {
  const names = await readdir(directory).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return [];
    throw error;
  });
  return names.toSorted();
}

const chunkBytes = 256 * 1024;

/** Creates a directory in memory: no process outlives the only replica of this store as an entry of it. */
function createMemoryDirectory(now: () => number): WorkerDirectory {
  const entries = new Map<string, WorkerProcess>();
  /** The end of each replica's entries. */
  const until = new Map<string, number>();

  function removeLapsed(): void {
    for (const [replica, time] of until) if (time <= now()) until.delete(replica);
    for (const [id, { replica }] of entries) if (!until.has(replica)) entries.delete(id);
  }

  return {
    async announceWorkers({ replica, processes, fresh, isAll, holdMs }) {
      removeLapsed();
      if (!isAll && !until.has(replica)) return undefined;
      until.set(replica, now() + holdMs);
      const staying = new Map<string, number>();
      for (const process of processes) {
        const id = workerIdOf(process.principal, process.instanceId);
        const { connection: last, replica: owner } = entries.get(id) ?? { connection: 0n, replica };
        const isLater = owner === replica || fresh.has(id);
        if (last < process.connection || (last === process.connection && isLater))
          entries.set(id, { ...clone(WorkerProcessSchema, process), replica });
        else if (owner !== replica) staying.set(id, Number(last));
      }
      return staying;
    },
    async removeWorkers(replica) {
      until.delete(replica);
      removeLapsed();
    },
    async forgetWorker(process) {
      const id = workerIdOf(process.principal, process.instanceId);
      const known = entries.get(id);
      if (known?.connection === process.connection && known.replica === process.replica) entries.delete(id);
    },
    async listWorkers() {
      removeLapsed();
      return [...entries.values()];
    },
  };
}
