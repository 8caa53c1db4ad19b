import { createHash } from "node:crypto";
import { createReadStream, existsSync } from "node:fs";
import { lchown, mkdir, mkdtemp, open, readdir, rename, rm, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { Readable } from "node:stream";
import { createTarDecoder } from "modern-tar";
import { StoreUnusable } from "../errors.ts";
import type { AdoptedCopy, EndOpenCall } from "./adopt-copy.ts";
import {
  type BackupManifest,
  databaseName,
  guardName,
  isEntryName,
  manifestName,
  manifestSchema,
  outputDirectory,
} from "./backup-form.ts";
import { checkUnused } from "./database.ts";
import { breakGuard } from "./guard.ts";
import { syncDirectory } from "./outputs.ts";
import { openSqliteStore } from "./store.ts";

/** Outcome of a restore. */
export interface RestoredStore extends AdoptedCopy {
  /** Time of the backup, in ms since the epoch. */
  created: number;
  /** Number of outputs. */
  outputs: number;
  /** The directory that holds what was in the data directory before; undefined if there was no store. */
  before?: string;
}

/**
 * Puts the contents of a backup into a data directory that no service uses, after every entry was compared with the manifest
 * and the database was adopted as a copy. The store that was there is moved aside. Meanwhile the guard matches no database, so
 * a start after a crash of this process adopts what it finds as a copy.
 */
export async function restoreBackup(file: string, directory: string, endOpenCall: EndOpenCall): Promise<RestoredStore> {
  await mkdir(directory, { recursive: true, mode: 0o700 });
  checkUnused(directory);
  const unpacked = await mkdtemp(join(directory, "restore-"));
  try {
    const manifest = await unpack(file, unpacked);
    const adopted = await adopt(unpacked, endOpenCall);
    await giveToOwner(unpacked, await stat(directory));
    // A hook or a browser may have started the service meanwhile, by its socket.
    checkUnused(directory);
    breakGuard(directory);
    const before = moved.some((name) => existsSync(join(directory, name))) ? placeOfBefore(directory) : undefined;
    if (before !== undefined) await moveAside(directory, before);
    for (const name of [outputDirectory, databaseName, guardName]) {
      await rename(join(unpacked, name), join(directory, name)).catch(unlessMissing);
    }
    await syncDirectory(directory);
    const outputs = Object.keys(manifest.entries).length - 1;
    return { ...adopted, created: manifest.created, outputs, ...(before !== undefined && { before }) };
  } finally {
    await rm(unpacked, { recursive: true, force: true });
  }
}

/** Opens the database once as a copy. */
async function adopt(directory: string, endOpenCall: EndOpenCall): Promise<AdoptedCopy> {
  const { adopted, calls } = await openSqliteStore({ directory, endOpenCall, isRestored: true });
  await calls.close();
  if (adopted === undefined) throw new Error("a restored database was not adopted");
  return adopted;
}

function unlessMissing(error: NodeJS.ErrnoException): undefined {
  if (error.code !== "ENOENT") throw error;
}

/** Names the directory to which the store of a data directory is moved. */
function placeOfBefore(directory: string): string {
  return join(directory, `before-restore-${new Date().toISOString().replaceAll(/[:.]/g, "-")}`);
}

/** The files of a store; without its database the others would count as parts of the one that is restored. */
const moved = [databaseName, `${databaseName}-wal`, `${databaseName}-shm`, outputDirectory];

async function moveAside(directory: string, before: string): Promise<void> {
  await mkdir(before, { mode: 0o700 });
  for (const name of moved) {
    await rename(join(directory, name), join(before, name)).catch(unlessMissing);
  }
}

/** Unpacks a backup and compares each entry with the manifest. */
async function unpack(file: string, directory: string): Promise<BackupManifest> {
  const found = new Map<string, string>();
  let manifest: BackupManifest | undefined;
  try {
    const bytes = Readable.toWeb(createReadStream(file)).pipeThrough(createTarDecoder({ strict: true }));
    for await (const { header, body } of bytes) {
      const { name } = header;
      if (name === manifestName) manifest = manifestSchema.parse(await new Response(body).json());
      else if (isEntryName(name)) found.set(name, await writeEntry(body, join(directory, name)));
      else throw new Error(`it has an entry "${name}", which no backup has`);
    }
  } catch (cause) {
    if (cause instanceof Error && "syscall" in cause) throw cause;
    const fact = cause instanceof Error ? (cause.message.split("\n", 1)[0] ?? "") : String(cause);
    throw unusable(file, fact, cause);
  }
  if (manifest === undefined) throw unusable(file, "it ends before its manifest");
  const names = new Set([...found.keys(), ...Object.keys(manifest.entries)]);
  for (const name of names) {
    if (manifest.entries[name]?.sha256 === found.get(name)) continue;
    throw unusable(file, `the entry "${name}" is not what the manifest describes`);
  }
  if (!found.has(databaseName)) throw unusable(file, "it has no database");
  return manifest;
}

function unusable(file: string, fact: string, cause?: unknown): StoreUnusable {
  return new StoreUnusable(
    `${file} is not a whole backup of Toolgate (${fact}): nothing was changed; restore another backup`,
    { cause },
  );
}

/** Writes an entry durably and returns the SHA-256 of its content. */
async function writeEntry(body: ReadableStream<Uint8Array>, path: string): Promise<string> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  const hash = createHash("sha256");
  const file = await open(path, "wx", 0o600);
  try {
    for await (const bytes of body) {
      hash.update(bytes);
      await file.writeFile(bytes);
    }
    await file.sync();
  } finally {
    await file.close();
  }
  return hash.digest("hex");
}

/** Gives the files to the owner of the data directory: run by root, the command must leave files that the service can use. */
async function giveToOwner(directory: string, { uid, gid }: { uid: number; gid: number }): Promise<void> {
  const isRoot = process.getuid?.() === 0;
  for (const entry of await readdir(directory, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    if (entry.isDirectory()) await syncDirectory(path);
    if (isRoot) await lchown(path, uid, gid);
  }
}
