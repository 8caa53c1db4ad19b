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
import { setTimeout as delay } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { createKnownResults } from "../../src/sandbox/known-results.ts";
import { NameIndex } from "../../src/sandbox/name-index.ts";
import { type NameTree, treeWithout } from "../../src/sandbox/name-tree.ts";
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

  test("is torn, until it looks again, by a directory that was listed and is gone when it is read", () => {
    const index = new NameIndex();
    const [source, away] = [join(directory, "src"), join(directory, "away")];
    index.refresh();
    index.list(directory);
    renameSync(source, away);
    expect([index.list(source), index.isTorn]).toEqual([undefined, true]);
    renameSync(away, source);
    index.refresh();
    index.list(directory);
    index.list(source);
    expect(index.isTorn).toBe(false);
  });

  test("is still if nothing has changed but the directory that it read first, and was known before", async () => {
    const index = new NameIndex();
    mkdirSync(join(directory, "sub"));
    const isStillIn = (...paths: string[]) => {
      index.refresh();
      for (const path of paths) index.list(path);
      return index.isStill;
    };
    const [first, second] = [directory, join(directory, "sub")];
    expect(isStillIn(first, second), "nothing was known").toBe(false);
    // What has just changed could change again within the kernel's step of time.
    await delay(50);
    isStillIn(first, second);
    expect(isStillIn(first, second)).toBe(true);
    writeFileSync(join(first, "new"), "");
    expect(isStillIn(first, second)).toBe(true);
    writeFileSync(join(second, "new"), "");
    expect(isStillIn(first, second)).toBe(false);
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

describe("a known result", () => {
  const paths = (tree: NameTree, at: string): string[] => {
    const { directories = [], files = [], links = [] } = tree.list(at) ?? {};
    return [...directories.flatMap((name) => paths(tree, join(at, name))), ...files, ...links].map(
      (name) => `${at}/${name}`,
    );
  };

  /** A function whose results are stored, by now also that for the directory as it is. */
  function openResults({ tracks = (): boolean => true, placeholders = [] as string[] } = {}) {
    const index = new NameIndex();
    const resultOf = createKnownResults<string[]>(index, tracks);
    let computedCount = 0;
    /** Returns true if the result was computed; it is always the one that a new index gives. */
    const isComputed = (left: string[] = []) => {
      const before = computedCount;
      index.refresh();
      const found = resultOf("request", left, ({ tree, hasTrackedFiles }) => {
        computedCount += 1;
        return hasTrackedFiles(directory) ? paths(tree, directory) : [];
      });
      const now = tracks() ? paths(treeWithout(new NameIndex(), left), directory) : [];
      expect(found.toSorted()).toEqual(now.toSorted());
      return computedCount > before;
    };
    // A directory counts as moving while the kernel could give a change the same time.
    while (isComputed(placeholders));
    return isComputed;
  }

  const changes: Record<string, () => void> = {
    "a file was added": () => writeFileSync(join(directory, "src/new.txt"), ""),
    "a file was renamed": () => renameSync(join(directory, "src/.env"), join(directory, "src/other")),
    "two directories were exchanged": () => {
      renameSync(join(directory, "src"), join(directory, "x"));
      renameSync(join(directory, "empty"), join(directory, "src"));
      renameSync(join(directory, "x"), join(directory, "empty"));
    },
    "a directory is a link by now": () => {
      renameSync(join(directory, "src"), join(directory, "empty/src"));
      symlinkSync("empty/src", join(directory, "src"));
    },
    "a directory was removed": () => rmSync(join(directory, "empty"), { recursive: true }),
  };

  test.each(Object.entries(changes))("is computed again if %s, once", (_, change) => {
    mkdirSync(join(directory, "empty"));
    const isComputed = openResults();
    change();
    expect(isComputed()).toBe(true);
    while (isComputed());
    expect(isComputed()).toBe(false);
  });

  test("is computed again if git tracks other files", () => {
    let isTracked = true;
    const isComputed = openResults({ tracks: () => isTracked });
    isTracked = false;
    expect(isComputed()).toBe(true);
  });

  test.each([[true], [false]])(
    "stays while placeholders come and go, not once such a name is one of another program; there at first: %s",
    (isFirst) => {
      const placeholder = join(directory, ".claude");
      if (isFirst) mkdirSync(placeholder);
      const isComputed = openResults({ placeholders: isFirst ? [placeholder] : [] });
      if (!isFirst) mkdirSync(placeholder);
      expect(isComputed([placeholder])).toBe(false);
      rmSync(placeholder, { recursive: true });
      expect(isComputed()).toBe(false);
      mkdirSync(placeholder);
      expect(isComputed()).toBe(true);
    },
  );

  test("is not stored if a directory was gone while it was computed", () => {
    mkdirSync(join(directory, "empty"));
    const index = new NameIndex();
    const resultOf = createKnownResults<string[] | undefined>(index, () => true);
    const away = join(directory, "empty/src");
    const look = (meanwhile: () => void) => {
      index.refresh();
      return resultOf("request", [], ({ tree }) => {
        tree.list(directory);
        meanwhile();
        const listed = tree.list(join(directory, "src"))?.files;
        if (listed === undefined) renameSync(away, join(directory, "src"));
        tree.list(join(directory, "src"));
        return listed && [...listed];
      });
    };
    look(() => {});
    expect(look(() => renameSync(join(directory, "src"), away))).toBeUndefined();
    expect(look(() => {})).toEqual([".env"]);
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
