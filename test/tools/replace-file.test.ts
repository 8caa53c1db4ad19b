import fs from "node:fs";
import { chmod, lstat, mkdir, mkdtemp, readdir, readFile, realpath, rename, rm, writeFile } from "node:fs/promises";
import { syncBuiltinESMExports } from "node:module";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { openWorkspace } from "../../src/tool/workspace.ts";

let directory: string;
beforeEach(async () => {
  directory = await realpath(await mkdtemp(join(tmpdir(), "toolgate-replace-")));
  await mkdir(join(directory, "in"));
  await writeFile(join(directory, "in/a.txt"), "old\n");
});
afterEach(() => rm(directory, { recursive: true }));

/** Imports it again, so that it uses the functions of node:fs as they are now. */
async function importReplaceFile() {
  vi.resetModules();
  const { replaceFile } = await import("../../src/tools/fs/replace-file.ts");
  const { resolve } = await openWorkspace("default", directory);
  return async (path: string, content: string, options?: { meanwhile(): Promise<void> }) => {
    const resolved = await resolve(path);
    await replaceFile(resolved, await lstat(resolved.absolute, { bigint: true }), Buffer.from(content), options);
  };
}

/** Records syncs and renames as they happen. */
function recordSteps(): string[] {
  const { fsync, renameSync } = fs;
  const steps: string[] = [];
  onTestFinished(() => {
    Object.assign(fs, { fsync, renameSync });
    syncBuiltinESMExports();
  });
  Object.assign(fs, {
    fsync(fd: number, done: (error: Error | null) => void) {
      const name = basename(fs.readlinkSync(`/proc/self/fd/${fd}`));
      if (fs.fstatSync(fd).isFile())
        steps.push(`sync of ${JSON.stringify(fs.readFileSync(`/proc/self/fd/${fd}`, "utf8"))} begins`);
      fsync(fd, (error) => {
        steps.push(`${name.replace(/[0-9a-f-]{36}/, "ID")} is on disk`);
        done(error);
      });
    },
    renameSync(from: string, to: string) {
      steps.push(`${basename(from).replace(/[0-9a-f-]{36}/, "ID")} becomes ${basename(to)}`);
      renameSync(from, to);
    },
  });
  syncBuiltinESMExports();
  return steps;
}

test("a file with set-ID bits has none once it is written", async () => {
  const path = join(directory, "in/a.txt");
  await chmod(path, 0o6755);
  const replace = await importReplaceFile();
  await replace("in/a.txt", "new\n");
  expect((await lstat(path)).mode & 0o7777).toBe(0o755);
});

test("the content is on disk before the file takes its place, and then its name, before the write is reported", async () => {
  const steps = recordSteps();
  const replace = await importReplaceFile();
  await replace("in/a.txt", "new\n");
  const temporary = steps[1]?.split(" ")[0];
  expect(steps).toEqual([
    'sync of "new\\n" begins',
    `${temporary} is on disk`,
    `${temporary} becomes a.txt`,
    "in is on disk",
  ]);
  expect(await readFile(join(directory, "in/a.txt"), "utf8")).toBe("new\n");
});

test("the names of new directories are on disk before the write is reported", async () => {
  const steps = recordSteps();
  vi.resetModules();
  const { replaceFile } = await import("../../src/tools/fs/replace-file.ts");
  await replaceFile({ absolute: join(directory, "in/new/deep/b.txt") }, undefined, Buffer.from("new\n"));
  expect(steps.filter((step) => !step.startsWith("sync of") && !step.startsWith("."))).toEqual([
    "in is on disk",
    "new is on disk",
    "deep is on disk",
  ]);
});

test("a file that changes during the sync is not replaced", async () => {
  const replace = await importReplaceFile();
  const meanwhile = () => writeFile(join(directory, "in/a.txt"), "by another program\n");
  await expect(replace("in/a.txt", "new\n", { meanwhile })).rejects.toThrow("has changed since the call was approved");
  expect(await readFile(join(directory, "in/a.txt"), "utf8")).toBe("by another program\n");
  expect(await readdir(join(directory, "in"))).toEqual(["a.txt"]);
});

test("a directory that is moved away during the sync is not written in", async () => {
  const replace = await importReplaceFile();
  const meanwhile = async () => {
    await rename(join(directory, "in"), join(directory, "away"));
    await mkdir(join(directory, "in"));
  };
  await expect(replace("in/a.txt", "new\n", { meanwhile })).rejects.toThrow();
  expect(await readFile(join(directory, "away/a.txt"), "utf8")).toBe("old\n");
  expect([await readdir(join(directory, "away")), await readdir(join(directory, "in"))]).toEqual([["a.txt"], []]);
});
