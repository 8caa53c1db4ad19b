import { closeSync, mkdirSync, openSync, readdirSync, renameSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { readIfExists } from "../core/read-files.ts";
import { isOtherProcessAlive } from "../core/worker-directory.ts";

/**
 * Marks of the requests whose body runs before its call is recorded. They are outside the store, cost no sync, and survive a
 * crash of the process, so that a request that crashes it is not run in this way again and again.
 */
export type CrashMarks = ReturnType<typeof openCrashMarks>;

const maxCrashes = 3;
const maxStoredCrashes = 1_000;
/** Bytes of a mark: a digest, filled up with zeros. */
const markBytes = 64;
/** Time after which marks that were removed are removed from the disk. */
const removeMs = 50;

/**
 * Opens the marks of this replica in a directory. Marks that an ended process left there count as crashes, whatever ended it.
 * Marks are written at the end of the turn of the event loop, for all bodies that still run then: a body that does not wait for
 * anything costs no write.
 */
export function openCrashMarks(directory: string, replicaId: string) {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const counts = new Map<string, number>();
  for (const digest of collectCrashes(directory)) counts.set(digest, (counts.get(digest) ?? 0) + 1);
  const file = join(directory, `${process.pid}-${replicaId}`);
  const fd = openSync(file, "w", 0o600);
  let marks = Buffer.alloc(16 * markBytes);
  const free: number[] = [];
  let slots = 0;
  let entered = 0;
  let writing: NodeJS.Immediate | undefined;
  let removing: NodeJS.Timeout | undefined;

  function write(): void {
    try {
      writeSync(fd, marks, 0, slots * markBytes, 0);
    } catch {
      // On a full disk a crash may not be counted.
    }
  }

  function newSlot(): number {
    if (slots * markBytes === marks.length) marks = Buffer.concat([marks, Buffer.alloc(marks.length)]);
    return slots++;
  }

  return {
    /** True if at least three processes ended while they ran the body of this request. */
    isSuspect: (digest: string): boolean => (counts.get(digest) ?? 0) >= maxCrashes,
    /** Marks that the body is entered; returns the function that removes the mark. */
    enter(digest: string): () => void {
      const at = (free.pop() ?? newSlot()) * markBytes;
      marks.write(digest, at, markBytes, "latin1");
      entered += 1;
      writing ??= setImmediate(() => {
        writing = undefined;
        if (entered === 0) return;
        write();
        removing ??= setTimeout(() => {
          removing = undefined;
          write();
        }, removeMs).unref();
      });
      let isMarked = true;
      return () => {
        if (!isMarked) return;
        isMarked = false;
        marks.fill(0, at, at + markBytes);
        free.push(at / markBytes);
        entered -= 1;
      };
    },
    close(): void {
      clearImmediate(writing);
      clearTimeout(removing);
      closeSync(fd);
      rmSync(file, { force: true });
    },
  };
}

/** Adds the marks that ended processes left to the list of crashes, and returns the list: one digest for each crash. */
function collectCrashes(directory: string): string[] {
  const list = join(directory, "crashes");
  const files = readdirSync(directory);
  const known = marksIn(readIfExists(list) ?? "");
  const left = files.filter((name) => /^\d+-/.test(name) && !isOtherProcessAlive(Number.parseInt(name, 10)));
  const marks = left.flatMap((name) => marksIn(readIfExists(join(directory, name)) ?? ""));
  const crashes = [...known, ...marks].slice(-maxStoredCrashes);
  if (marks.length > 0) {
    // Replicas that share the directory may start at the same time.
    const written = `${list}.new-${process.pid}`;
    writeFileSync(written, crashes.join("\n"), { mode: 0o600 });
    renameSync(written, list);
  }
  for (const name of left) rmSync(join(directory, name), { force: true });
  return crashes;
}

function marksIn(text: string): string[] {
  return text.match(/[\w-]+/g) ?? [];
}
