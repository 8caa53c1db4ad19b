import { randomBytes } from "node:crypto";
import { chmodSync, existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync, type SQLInputValue } from "node:sqlite";
import packageJson from "../../../package.json" with { type: "json" };
import { laterFormat, StoreUnusable } from "../errors.ts";
import { databaseName, guardName, outputDirectory } from "./backup-form.ts";
import { migrations, schema, schemaVersion } from "./schema.ts";

/** An open database that no other process can open. */
export interface Database {
  db: DatabaseSync;
  storeId: string;
  close(): void;
}

/**
 * Opens `toolgate.sqlite` in the directory; creates both if they are missing. Throws with the process id of the owner if the
 * directory is in use. After a process that ended without closing it, the structure of the database is checked. An empty one
 * beside the traces of another is refused, unless `newStore` is set.
 */
export function openDatabase(directory: string, { newStore = false }: { newStore?: boolean } = {}): Database {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const path = join(directory, databaseName);
  const pidPath = pidPathIn(directory);
  const wasClosed = !existsSync(pidPath) && !existsSync(`${path}-wal`);
  const db = new DatabaseSync(path, { timeout: 0 });
  try {
    chmodSync(path, 0o600);
    lock(db, { directory, path, pidPath });
    if (!wasClosed) checkStructure(db, path);
    if (!newStore) checkIsNotLost(db, directory);
    const storeId = prepareSchema(db, path);
    writePid(pidPath);
    return {
      db,
      storeId,
      close() {
        rmSync(pidPath, { force: true });
        db.close();
      },
    };
  } catch (error) {
    db.close();
    throw isDamageCode(codeOf(error))
      ? damagedDatabase(path, error instanceof Error ? error.message : "", error)
      : error;
  }
}

/** Checks the pages of the database, which takes about a second for 500 MB. */
function checkStructure(db: DatabaseSync, path: string): void {
  const [found] = statement<{ quick_check: string }>(db, "PRAGMA quick_check(1)").all();
  if (found?.quick_check === "ok") return;
  throw damagedDatabase(path, found?.quick_check.replaceAll("\n", " ") ?? "it cannot be checked");
}

/** Refuses an empty database in the directory of a store that was used: it was lost or emptied. */
function checkIsNotLost(db: DatabaseSync, directory: string): void {
  if (versionOf(db) > 0) return;
  const outputs = join(directory, outputDirectory);
  const trace = [join(directory, guardName), outputs].find((path) =>
    path === outputs ? hasEntries(path) : lstatSync(path, { throwIfNoEntry: false }) !== undefined,
  );
  if (trace === undefined) return;
  throw new StoreUnusable(
    `${join(directory, databaseName)} is empty, but ${trace} belongs to a store that was here: restore a backup with \`toolgate restore\`, or start with --new-store to begin without its records`,
  );
}

const hasEntries = (directory: string) => existsSync(directory) && readdirSync(directory).length > 0;

const versionOf = (db: DatabaseSync) => pragma(db, "user_version");

/** Reads a pragma that has a number. */
export const pragma = (db: DatabaseSync, name: string): number =>
  Number(Object.values(statement<object>(db, `PRAGMA ${name}`).get() ?? {})[0] ?? 0);

const pidPathIn = (directory: string) => join(directory, "toolgate.pid");

/** Throws with the process id of the owner if a process uses the database of a directory. The database may be damaged. */
export function checkUnused(directory: string): void {
  const path = join(directory, databaseName);
  if (!existsSync(path)) return;
  const db = new DatabaseSync(path, { timeout: 0 });
  try {
    lock(db, { directory, path, pidPath: pidPathIn(directory) });
  } catch (error) {
    if (error instanceof StoreUnusable && codeOf(error.cause) === busy) throw error;
  } finally {
    db.close();
  }
}

/** Returns SQLite's result code of an error, without its extension; undefined for other errors. */
export function codeOf(error: unknown): number | undefined {
  return error instanceof Error && "errcode" in error && typeof error.errcode === "number"
    ? error.errcode & 0xff
    : undefined;
}

/** Returns true for the result codes of a damaged database. */
export const isDamageCode = (code: number | undefined) => code === corrupt || code === notADatabase;

/** Describes a damaged database, with the next step. */
export function damagedDatabase(path: string, fact: string, cause?: unknown): StoreUnusable {
  return new StoreUnusable(
    `${path} is damaged (${fact}): restore a backup with \`toolgate restore\`, or start with another data directory`,
    { cause },
  );
}

/** Reads a JSON value of the table `meta`; undefined if there is none. */
export function readMeta<Value>(db: DatabaseSync, key: string): Value | undefined {
  const row = statement<{ value: string }>(db, "SELECT value FROM meta WHERE key = ?").get(key);
  try {
    return row && JSON.parse(row.value);
  } catch (cause) {
    throw damagedDatabase(databaseName, `its ${key} is not JSON`, cause);
  }
}

/** Prepares the write of a JSON value of the table `meta`. */
export function writesMeta(db: DatabaseSync, key: string): (value: unknown) => void {
  const write = statement(
    db,
    "INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT DO UPDATE SET value = excluded.value",
  );
  return (value) => void write.run({ key, value: JSON.stringify(value) });
}

/** Makes the id of a store. */
export const newStoreId = () => `sto_${randomBytes(16).toString("hex")}`;

/** A prepared statement whose rows have the named type. */
export interface Statement<Row> {
  get(...values: Values): Row | undefined;
  all(...values: Values): Row[];
  iterate(...values: Values): Iterable<Row>;
  run(...values: Values): { changes: number | bigint; lastInsertRowid: number | bigint };
}

type Values = SQLInputValue[] | [named: Record<string, SQLInputValue>];

/** Prepares a statement. Only the schema knows the type of its rows, so this cast is the one boundary. */
export function statement<Row = never>(db: DatabaseSync, sql: string): Statement<Row> {
  return db.prepare(sql) as unknown as Statement<Row>;
}

/** Returns the function that prepares statements of this database. */
export const statementsOf =
  (db: DatabaseSync) =>
  <Row = never>(sql: string) =>
    statement<Row>(db, sql);

/** Locks the database. The lock belongs to the kernel and ends with the process; the pid file only serves the message. */
function lock(
  db: DatabaseSync,
  { directory, path, pidPath }: { directory: string; path: string; pidPath: string },
): void {
  try {
    db.exec("PRAGMA locking_mode = EXCLUSIVE");
    // Takes effect before anything is written; later it would write at each start.
    if (pragma(db, "page_count") === 0) db.exec("PRAGMA auto_vacuum = INCREMENTAL");
    db.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL");
    db.exec("BEGIN IMMEDIATE; COMMIT");
  } catch (cause) {
    const words = new Map<unknown, string>([
      [busy, `the data directory ${directory} is in use by process ${readPid(pidPath)}: stop it`],
      [notADatabase, `${path} is not a database: put back the one that was there`],
    ]).get(codeOf(cause));
    if (words === undefined) throw cause;
    throw new StoreUnusable(`${words}, or start with another data directory`, { cause });
  }
}

function prepareSchema(db: DatabaseSync, path: string): string {
  const format = versionOf(db);
  if (format > schemaVersion)
    throw laterFormat(path, { format, version: readMeta<string>(db, raisedBy) }, schemaVersion);
  if (format < schemaVersion) {
    db.exec(`BEGIN; ${format === 0 ? schema : migrations.slice(format - 1).join("; ")}`);
    if (format === 0) statement(db, "INSERT INTO meta (key, value) VALUES ('store_id', ?)").run(newStoreId());
    writesMeta(db, raisedBy)(packageJson.version);
    db.exec(`PRAGMA user_version = ${schemaVersion}; COMMIT`);
  }
  const row = statement<{ value: string }>(db, "SELECT value FROM meta WHERE key = 'store_id'").get();
  if (row === undefined)
    throw new StoreUnusable(
      `${path} has no store id: it is not a store of Toolgate; start with another data directory`,
    );
  return row.value;
}

/** The entry of `meta` with the version that raised the format. */
const raisedBy = "raised_by";

// SQLite's result codes.
const busy = 5;
const corrupt = 11;
const notADatabase = 26;

/** Writes the pid file; a full disk does not prevent a start, since the kernel holds the lock. */
function writePid(pidPath: string): void {
  try {
    writeFileSync(pidPath, `${process.pid}\n`, { mode: 0o600 });
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "ENOSPC")) throw error;
  }
}

function readPid(pidPath: string): string {
  try {
    return readFileSync(pidPath, "utf8").trim();
  } catch {
    return "(unknown)";
  }
}
