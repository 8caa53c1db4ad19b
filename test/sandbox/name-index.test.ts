import { execFileSync } from "node:child_process";
import {
  linkSync,
  mkdirSync,
  mkdtempSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { createGitTracking } from "../../src/sandbox/git-tracking.ts";
import { NameIndex } from "../../src/sandbox/name-index.ts";
import { resolveMasks } from "../../src/sandbox/other-names.ts";

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

  test("lists neither links nor what is behind them", () => {
    symlinkSync("src", join(directory, "link"));
    symlinkSync("src/.env", join(directory, "other.env"));
    expect(new NameIndex().list(directory)).toMatchObject({ directories: ["src"], files: [] });
  });
});

describe("files to mask", () => {
  test("that are gone meanwhile are left out", () => {
    const masked = ["src/.env", "src/gone.env"].map((path) => ({ path: join(directory, path), reason: "" }));
    expect(resolveMasks(masked, [directory], new NameIndex()).map(({ path }) => path)).toEqual([
      join(directory, "src/.env"),
    ]);
  });

  test("get their other names (hard links) masked, too", () => {
    linkSync(join(directory, "src/.env"), join(directory, "copy.txt"));
    const masked = [{ path: join(directory, "src/.env"), reason: "rule" }];
    expect(resolveMasks(masked, [directory], new NameIndex())).toMatchObject([
      { path: join(directory, "src/.env"), reason: "rule" },
      { path: join(directory, "copy.txt"), reason: expect.stringContaining("same file") },
    ]);
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
