import { execFileSync } from "node:child_process";
import {
  linkSync,
  mkdirSync,
  mkdtempSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { NameIndex } from "../../src/sandbox/name-index.ts";
import { createGitTracking, resolveMasks } from "../../src/sandbox/plan-thread.ts";

let directory: string;
beforeEach(() => {
  directory = realpathSync(mkdtempSync(join(tmpdir(), "toolgate-index-")));
  mkdirSync(join(directory, "src"));
  writeFileSync(join(directory, "src/.env"), "secret");
});
afterEach(() => rmSync(directory, { recursive: true }));

const filter = { key: "env", test: (name: string) => (name.includes("env") ? 1 : 0) };

describe("the index of names", () => {
  test("finds a file that was created, renamed or removed since the last look", () => {
    const index = new NameIndex();
    const found = () => {
      index.refresh();
      return [...index.select(join(directory, "src"), filter).keys()].sort();
    };
    expect(found()).toEqual([".env"]);
    writeFileSync(join(directory, "src/prod.env"), "");
    expect(found()).toEqual([".env", "prod.env"]);
    renameSync(join(directory, "src/prod.env"), join(directory, "src/prod.txt"));
    expect(found()).toEqual([".env"]);
    rmSync(join(directory, "src"), { recursive: true });
    expect(found()).toEqual([]);
  });

  test("finds a change that was followed by setting back the time of modification", () => {
    const index = new NameIndex();
    utimesSync(directory, new Date(0), new Date(0));
    mkdirSync(join(directory, "other"));
    utimesSync(directory, new Date(0), new Date(0));
    const moved = join(directory, "other/src");
    const found = () => {
      index.refresh();
      return index.list(join(directory, "other"))?.directories;
    };
    expect(found()).toEqual([]);
    renameSync(join(directory, "src"), moved);
    utimesSync(join(directory, "other"), new Date(0), new Date(0));
    expect(found()).toEqual(["src"]);
  });

  test("lists neither links nor what is behind them", () => {
    symlinkSync("src", join(directory, "link"));
    symlinkSync("src/.env", join(directory, "other.env"));
    expect(new NameIndex().list(directory)).toMatchObject({ directories: ["src"], files: [] });
  });
});

describe("files to mask", () => {
  test("that are gone meanwhile are left out", () => {
    const masked = ["src/.env", "src/gone.env"].map((path) => ({ path: join(directory, path), reason: "" }));
    expect(resolveMasks({ masked, emptied: [] }, [directory], new NameIndex()).map(({ path }) => path)).toEqual([
      join(directory, "src/.env"),
    ]);
  });

  test("get their other names (hard links) masked, too", () => {
    linkSync(join(directory, "src/.env"), join(directory, "copy.txt"));
    const masked = [{ path: join(directory, "src/.env"), reason: "rule" }];
    expect(resolveMasks({ masked, emptied: [] }, [directory], new NameIndex())).toMatchObject([
      { path: join(directory, "src/.env"), reason: "rule" },
      { path: join(directory, "copy.txt"), reason: expect.stringContaining("same file") },
    ]);
  });

  test("are also the other names of files in an emptied directory", () => {
    linkSync(join(directory, "src/.env"), join(directory, "copy.txt"));
    linkSync(join(directory, "src/.env"), join(directory, "src/copy.txt"));
    const emptied = [{ path: join(directory, "src"), reason: "rule" }];
    const masked = resolveMasks({ masked: [], emptied }, [directory], new NameIndex());
    expect(masked.map(({ path }) => path)).toEqual([join(directory, "copy.txt")]);
  });
});

test("git tracks a file below a directory from git add on", () => {
  const git = (...args: string[]) => execFileSync("git", ["-C", directory, ...args]);
  const hasTrackedFiles = createGitTracking();
  expect(hasTrackedFiles(join(directory, "src"))).toBe(false);
  git("init", "-q");
  expect(hasTrackedFiles(join(directory, "src"))).toBe(false);
  git("add", "src");
  expect([hasTrackedFiles(join(directory, "src")), hasTrackedFiles(join(directory, "sr"))]).toEqual([true, false]);
  git("update-index", "--index-version", "4");
  expect(hasTrackedFiles(join(directory, "any")), "an index that cannot be read").toBe(true);
});
