import { readFileSync, statSync } from "node:fs";
import { mkdir, open, rename, rm, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import type { Logger } from "../core/logger.ts";
import type { Credential } from "../credential/credential.ts";
import type { CredentialTable } from "../credential/ports.ts";
import { credentialSchema } from "./credential-schema.ts";
import { StoreUnusable } from "./errors.ts";

/** Opens the table of a data directory; a file that becomes unreadable is logged. */
export function openLoggedCredentialFile(dataDirectory: string, log?: Logger): CredentialTable {
  const report = (problem: string) => log?.error(`no stored credential is accepted: ${problem}`);
  return openCredentialFile(join(dataDirectory, "credentials.json"), { report });
}

/**
 * Opens the table in a file (0600). Each change replaces the file by a rename, under a lock that other processes respect, so
 * `toolgate token create` can add a record while the service runs. A file that cannot be read is refused at the start; later
 * it means that no credential of it is accepted, and `report` is called once.
 */
export function openCredentialFile(
  file: string,
  { report = () => {} }: { report?: (problem: string) => void } = {},
): CredentialTable {
  let mark = "";
  let records: readonly Credential[] = [];
  let problem = "";
  let writing: Promise<unknown> = Promise.resolve();

  /** Reads the file if it is another one than at the last time; returns false if it is the same. */
  function readIfChanged(): boolean {
    const found = markOf(file);
    if (found === mark) return false;
    mark = found;
    records = [];
    problem = "";
    if (found === absent) return true;
    try {
      records = table.parse(JSON.parse(readFileSync(file, "utf8"))).credentials;
    } catch (cause) {
      const fact = cause instanceof Error ? (cause.message.split("\n", 1)[0] ?? "") : String(cause);
      problem = `${file} is not a table of credentials (${fact}): restore it, or remove it and sign in again`;
    }
    return true;
  }

  function readUsable(): void {
    readIfChanged();
    if (problem !== "") throw new StoreUnusable(problem);
  }

  /** Replaces the records by what `next` makes of the stored ones. Changes of this process follow one another. */
  function change(next: (stored: readonly Credential[]) => readonly Credential[]): Promise<void> {
    const done = writing.then(() =>
      locked(`${file}.lock`, async () => {
        readUsable();
        await replace(file, `${JSON.stringify({ credentials: next(records) }, null, 2)}\n`);
        readUsable();
      }),
    );
    writing = done.catch(() => undefined);
    return done;
  }

  readUsable();
  const current = () => {
    if (readIfChanged() && problem !== "") report(problem);
    return records;
  };
  return {
    current,
    async refresh() {
      current();
    },
    add: (credential) => change((stored) => [...stored, credential]),
    async revoke(id, time) {
      await change((stored) =>
        stored.map((each) => (each.id === id && each.revoked === 0 ? { ...each, revoked: time } : each)),
      );
      return records.find((each) => each.id === id);
    },
    remove: (ids) => change((stored) => stored.filter(({ id }) => !ids.includes(id))),
  };
}

const table = z.object({ credentials: z.array(credentialSchema) });

const absent = "absent";

/** Identifies the content of a file: each change makes a new file. */
function markOf(file: string): string {
  const found = statSync(file, { bigint: true, throwIfNoEntry: false });
  return found === undefined ? absent : `${found.ino} ${found.mtimeNs} ${found.size}`;
}

/** Writes a file and its directory entry durably. */
async function replace(file: string, text: string): Promise<void> {
  const next = `${file}.${process.pid}.new`;
  const written = await open(next, "w", 0o600);
  try {
    // Run by root, a command must leave a file that the service can read.
    const { uid, gid } = await stat(dirname(file));
    if (process.getuid?.() === 0) await written.chown(uid, gid);
    await written.writeFile(text);
    await written.sync();
  } finally {
    await written.close();
  }
  await rename(next, file);
  const directory = await open(dirname(file), "r");
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}

/** Runs work while this process holds a lock; one that a dead process left behind is removed after a while. */
async function locked(lock: string, work: () => Promise<void>): Promise<void> {
  while (!(await isTaken(lock))) {
    const found = await stat(lock).catch(() => undefined);
    if (found !== undefined && Date.now() - found.mtimeMs > staleMs) await rm(lock, { recursive: true, force: true });
    else await sleep(20);
  }
  try {
    await work();
  } finally {
    await rm(lock, { recursive: true, force: true });
  }
}

async function isTaken(lock: string): Promise<boolean> {
  try {
    await mkdir(lock);
    return true;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "EEXIST") return false;
    throw error;
  }
}

const staleMs = 10_000;
