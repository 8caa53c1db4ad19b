import { randomBytes } from "node:crypto";
import { chmodSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync, type SQLInputValue } from "node:sqlite";
import { StoreUnusable } from "../errors.ts";
import { migrations, schema, schemaVersion } from "./schema.ts";

/** An open database that no other process can open. */
export interface Database {
  db: DatabaseSync;
  storeId: string;
  close(): void;
}

/** Opens `toolgate.sqlite` in the directory; creates both if they are missing. Throws with the process id of the owner if the directory is in use. */
export function openDatabase(directory: string): Database {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const path = join(directory, "toolgate.sqlite");
  const pidPath = join(directory, "toolgate.pid");
  const db = new DatabaseSync(path, { timeout: 0 });
  try {
    chmodSync(path, 0o600);
    lock(db, { directory, path, pidPath });
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
    throw error;
  }
}

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

/** Locks the database. The lock belongs to the kernel and ends with the process; the pid file only serves the message. */
function lock(
  db: DatabaseSync,
  { directory, path, pidPath }: { directory: string; path: string; pidPath: string },
): void {
  try {
    db.exec("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;");
    db.exec("BEGIN IMMEDIATE; COMMIT");
  } catch (cause) {
    const code = cause instanceof Error && "errcode" in cause ? cause.errcode : undefined;
    const words = new Map<unknown, string>([
      [busy, `the data directory ${directory} is in use by process ${readPid(pidPath)}: stop it`],
      [notADatabase, `${path} is not a database: put back the one that was there`],
    ]).get(code);
    if (words === undefined) throw cause;
    throw new StoreUnusable(`${words}, or start with another data directory`, { cause });
  }
}

function prepareSchema(db: DatabaseSync, path: string): string {
  const version = statement<{ user_version: number }>(db, "PRAGMA user_version").get()?.user_version ?? 0;
  if (version > schemaVersion) {
    throw new StoreUnusable(
      `${path} was written by a newer Toolgate (schema ${version}, this one knows ${schemaVersion}): start that version, or use another data directory`,
    );
  }
  if (version > 0 && version < schemaVersion) {
    db.exec(`BEGIN; ${migrations.slice(version - 1).join("; ")}; PRAGMA user_version = ${schemaVersion}; COMMIT`);
  }
  if (version === 0) {
    db.exec(`BEGIN; ${schema} PRAGMA user_version = ${schemaVersion};`);
    const storeId = `sto_${randomBytes(16).toString("hex")}`;
    statement(db, "INSERT INTO meta (key, value) VALUES ('store_id', ?)").run(storeId);
    db.exec("COMMIT");
  }
  const row = statement<{ value: string }>(db, "SELECT value FROM meta WHERE key = 'store_id'").get();
  if (row === undefined)
    throw new StoreUnusable(
      `${path} has no store id: it is not a store of Toolgate; start with another data directory`,
    );
  return row.value;
}

// SQLite's result codes.
const busy = 5;
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
