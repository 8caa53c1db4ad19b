import { mkdirSync, mkdtempSync, renameSync, rmSync, utimesSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import { openRecordFile } from "../../src/store/record-file.ts";

/** A file of words whose lock another process holds, and a clock that only the test moves. */
function openLocked() {
  const directory = mkdtempSync(join(tmpdir(), "toolgate-records-"));
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => {
    vi.useRealTimers();
    rmSync(directory, { recursive: true });
  });
  const file = join(directory, "words.json");
  const form = { read: (json: unknown) => json as string[], write: (words: unknown) => words, unreadable: String };
  const lock = `${file}.lock`;
  mkdirSync(lock);
  const words = openRecordFile<string>(file, form);
  const add = words.change((stored) => [...stored, "new"]);
  return { lock, words, add };
}

/** Passes a time, once the process that waits has seen the lock. */
async function pass(ms: number): Promise<void> {
  await sleep(100);
  vi.advanceTimersByTime(ms);
  await sleep(100);
}

test("a lock that a dead process left with a time in the future is removed 10 s after it was seen", async () => {
  const { lock, words, add } = openLocked();
  utimesSync(lock, new Date("2100-01-01"), new Date("2100-01-01"));
  await pass(10_001);
  await add;
  expect(words.current()).toEqual(["new"]);
});

test("a lock that is taken in turn is not removed, however old it looks", async () => {
  const { lock, words, add } = openLocked();
  for (let turn = 0; turn < 3; turn++) {
    await pass(6_000);
    // In one step: the process that waits takes a lock that is away for a moment.
    const next = `${lock}.next`;
    mkdirSync(next);
    utimesSync(next, new Date("2000-01-01"), new Date(Date.UTC(2000, 1, turn + 1)));
    renameSync(next, lock);
  }
  await pass(0);
  expect(words.current()).toEqual([]);
  rmSync(lock, { recursive: true });
  await add;
  expect(words.current()).toEqual(["new"]);
});
