import { createHash } from "node:crypto";
import { mkdir, open, readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { backup, type DatabaseSync } from "node:sqlite";
import { Readable } from "node:stream";
import { setTimeout } from "node:timers/promises";
import { packTar, type TarSource } from "modern-tar/fs";
import { type BackupManifest, databaseName, manifestName, outputDirectory } from "./backup-form.ts";
import { type DatabaseHealth, unavailable } from "./health.ts";

/** Returns the directory of temporary copies of the database. */
export const copiesOf = (directory: string) => join(directory, "backup");

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
