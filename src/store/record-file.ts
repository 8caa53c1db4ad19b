import { readFileSync, rmSync, statSync } from "node:fs";
import { mkdir, open, rename, rm, stat } from "node:fs/promises";
import { dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { StoreUnusable } from "./errors.ts";
import { storeFull } from "./refusals.ts";

/** A table of records in a file. */
export interface RecordFile<T> {
  /** Returns the records as last read, always the same array until they change; a file that changed is read again first. */
  current(): readonly T[];
  /** Replaces the records by what `next` makes of the stored ones; resolves when the change is durable. */
  change(next: (stored: readonly T[]) => readonly T[]): Promise<void>;
}

/** Form of the records in a file. */
export interface RecordForm<T> {
  /** Returns the records of the parsed JSON; throws if it does not have this form. */
  read(json: unknown): readonly T[];
  /** Returns the JSON of records. */
  write(records: readonly T[]): unknown;
  /** Completes the sentence "FILE is not …" about an unreadable file, with the next step. */
  unreadable(fact: string): string;
}

/**
 * Opens a file of records (0600). Each change replaces the file by a rename, under a lock that other processes respect, so a
 * command can change the table while the service runs. A file that cannot be read is refused at the start; later it counts as
 * empty, and `report` is called once.
 */
export function openRecordFile<T>(
  file: string,
  form: RecordForm<T>,
  { report = () => {} }: { report?: (problem: string) => void } = {},
): RecordFile<T> {
  let mark = "";
  let records: readonly T[] = [];
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
      records = form.read(JSON.parse(readFileSync(file, "utf8")));
    } catch (cause) {
      const fact = cause instanceof Error ? (cause.message.split("\n", 1)[0] ?? "") : String(cause);
      problem = `${file} is not ${form.unreadable(fact)}`;
    }
    return true;
  }

  function readUsable(): void {
    readIfChanged();
    if (problem !== "") throw new StoreUnusable(problem);
  }

  readUsable();
  return {
    current() {
      if (readIfChanged() && problem !== "") report(problem);
      return records;
    },
    // Changes of this process follow one another.
    change(next) {
      const done = writing.then(() =>
        locked(`${file}.lock`, async () => {
          readUsable();
          await replace(file, `${JSON.stringify(form.write(next(records)), null, 2)}\n`);
          readUsable();
        }),
      );
      writing = done.catch(() => undefined);
      return done.catch((cause: unknown) => {
        throw isDiskFull(cause) ? storeFull(cause) : cause;
      });
    },
  };
}

const isDiskFull = (error: unknown) =>
  error instanceof Error && "code" in error && (error.code === "ENOSPC" || error.code === "EDQUOT");

const absent = "absent";

/** Identifies the content of a file: each change makes a new file. */
function markOf(file: string): string {
  const found = statSync(file, { bigint: true, throwIfNoEntry: false });
  return found === undefined ? absent : `${found.ino} ${found.mtimeNs} ${found.size}`;
}

/** Writes a file and its directory entry durably. */
async function replace(file: string, text: string): Promise<void> {
  const next = `${file}.${process.pid}.new`;
  try {
    // Left by a process of this id that was killed.
    await rm(next, { force: true });
    await writeDurably(next, text);
    await rename(next, file);
  } catch (error) {
    await rm(next, { force: true }).catch(() => undefined);
    throw error;
  }
  const directory = await open(dirname(file), "r");
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}

async function writeDurably(file: string, text: string): Promise<void> {
  // Run by root, it must not follow a link of the service's user.
  const written = await open(file, "wx", 0o600);
  try {
    // Run by root, a command must leave a file that the service can read.
    const { uid, gid } = await stat(dirname(file));
    if (process.getuid?.() === 0) await written.chown(uid, gid);
    await written.writeFile(text);
    await written.sync();
  } finally {
    await written.close();
  }
}

/**
 * Runs work while this process holds a lock; one that a dead process left behind is removed once it was seen for a while, whatever
 * its time, since clocks jump.
 */
async function locked(lock: string, work: () => Promise<void>): Promise<void> {
  let seen = { mark: absent, since: 0 };
  while (!(await isTaken(lock))) {
    const mark = markOf(lock);
    if (mark !== seen.mark) seen = { mark, since: performance.now() };
    // In the turn in which it was found: another process that waits may have removed the old lock and taken a new one.
    else if (mark !== absent && performance.now() - seen.since > staleMs)
      rmSync(lock, { recursive: true, force: true });
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
