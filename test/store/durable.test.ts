import { readlinkSync } from "node:fs";
import { type FileHandle, mkdtemp, open, realpath, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { openDatabase, statement } from "../../src/store/sqlite/database.ts";
import { openOutputFile } from "../../src/store/sqlite/outputs.ts";

// A process that is killed leaves its writes to the kernel, so only a power cut would show a missing sync.

let directory: string;
beforeEach(async () => {
  directory = await realpath(await mkdtemp(join(tmpdir(), "toolgate-durable-")));
});
afterEach(() => rm(directory, { recursive: true }));

/** Records the writes and syncs of all files that are opened by fs/promises; `fail` makes a step throw. */
async function recordSteps(fail: (step: string) => void = () => {}): Promise<string[]> {
  const handle = await open(directory);
  const methods: FileHandle = Object.getPrototypeOf(handle);
  await handle.close();
  const steps: string[] = [];
  for (const name of ["write", "datasync", "sync"] as const) {
    const real: (...given: never[]) => Promise<unknown> = methods[name];
    const spy = vi.spyOn(methods, name).mockImplementation(async function (this: FileHandle, ...given: never[]) {
      const path = readlinkSync(`/proc/self/fd/${this.fd}`).slice(directory.length + 1) || ".";
      const result = await Reflect.apply(real, this, given);
      steps.push(`${name} ${path}`);
      fail(name);
      return result as never;
    });
    onTestFinished(() => spy.mockRestore());
  }
  return steps;
}

test("SQLite syncs each commit before it returns", () => {
  const { db, close } = openDatabase(directory);
  onTestFinished(close);
  const setting = (name: string) => Object.values(statement<object>(db, `PRAGMA ${name}`).get() ?? {})[0];
  // 2 is FULL.
  expect(setting("synchronous")).toBe(2);
  expect(setting("journal_mode")).toBe("wal");
  expect(setting("locking_mode")).toBe("exclusive");
});

test("an append to an output resolves after its bytes, and for a new output its directories, are on disk", async () => {
  const steps = await recordSteps();
  const output = openOutputFile(join(directory, "output/ses_a/out_1"));
  onTestFinished(output.close);
  await output.append(Buffer.from("one"));
  const names = ["sync .", "sync output", "sync output/ses_a"];
  expect(steps.slice(0, 3).toSorted()).toEqual(names);
  expect(steps.slice(3)).toEqual(["write output/ses_a/out_1", "datasync output/ses_a/out_1"]);
  steps.length = 0;
  await output.append(Buffer.from("two"));
  expect(steps).toEqual(["write output/ses_a/out_1", "datasync output/ses_a/out_1"]);
});

test("an append that cannot be synced leaves nothing", async () => {
  const path = join(directory, "output/ses_a/out_1");
  const output = openOutputFile(path);
  onTestFinished(output.close);
  await output.append(Buffer.from("one"));
  let failures = 1;
  await recordSteps((step) => {
    if (step === "datasync" && failures-- > 0) throw new Error("ENOSPC");
  });
  await expect(output.append(Buffer.from("lost"))).rejects.toThrow();
  expect((await stat(path)).size).toBe(3);
  await output.append(Buffer.from("2"));
  expect(Buffer.from((await output.read(0, 100))?.data ?? []).toString()).toBe("one2");
});
