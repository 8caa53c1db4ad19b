import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { createGitHistory } from "../../src/sandbox/git-history.ts";
import { openSandbox, type Sandbox } from "../../src/sandbox/sandbox.ts";
import { environmentOf } from "../../src/tools/process/confine-command.ts";

let sandbox: Sandbox;

beforeAll(async () => {
  const wanted = { profile: "workspace-write", network: "none" } as const;
  sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [] });
  expect(sandbox.problem).toBeUndefined();
});
afterAll(() => sandbox.close());

/** A repository in which each of several ways has left a name; the work tree has only `kept.txt`. */
function newRepository() {
  const top = mkdtempSync(join(tmpdir(), "toolgate-history-"));
  onTestFinished(() => rmSync(top, { recursive: true }));
  const git = (...args: string[]) => execFileSync("git", ["-C", top, ...args], { stdio: "pipe" }).toString();
  const write = (name: string) => writeFileSync(join(top, name), `content of ${name}\n`);
  const commit = (...names: string[]) => {
    for (const name of names) write(name);
    git("add", "-f", ...names);
    git("commit", "-qm", names.join(" "));
  };
  git("init", "-q", "-b", "main");
  git("config", "user.email", "a@example.com");
  git("config", "user.name", "A");
  mkdirSync(join(top, "a b"));
  commit("kept.txt", "removed.env", "a b/Grüße.env");
  git("rm", "-q", "removed.env", "a b/Grüße.env");
  commit("kept.txt");
  return { top, git, write, commit };
}

const historyOf = (options: { maxWaitMs?: number; maxNames?: number } = {}) =>
  createGitHistory({ sandbox, env: () => environmentOf({}), maxWaitMs: 60_000, ...options });

test("the names of a history include those of removed, merged, stashed, reset and staged files", async () => {
  const { top, git, write, commit } = newRepository();
  git("checkout", "-qb", "topic");
  commit("branch.env");
  git("checkout", "-q", "main");
  commit("kept.txt", "other.txt");
  git("merge", "-q", "--no-commit", "topic");
  commit("merged.env");
  write("kept.txt");
  commit("reset.env");
  git("reset", "-q", "--hard", "HEAD~1");
  write("stashed.env");
  git("add", "-f", "stashed.env");
  git("stash", "-q");
  write("staged.env");
  git("add", "-f", "staged.env");
  const names = await historyOf().namesOf(top);
  expect(names.problem("history")).toBeUndefined();
  expect([...names.select("history", [".env"])].sort()).toEqual(
    ["a b/Grüße.env", "branch.env", "merged.env", "removed.env", "reset.env", "staged.env", "stashed.env"].sort(),
  );
  expect(names.select("index", [".env"])).toEqual(["branch.env", "merged.env", "staged.env"]);
  expect(names.select("history", undefined)).toContain("other.txt");
});

test("new commits are found, also after those that are known were removed", async () => {
  const { top, git, commit } = newRepository();
  const history = historyOf();
  const found = async () =>
    (await history.namesOf(top)).select("history", ["late"]).filter((name) => name.startsWith("late"));
  expect(await found()).toEqual([]);
  commit("late.env");
  expect(await found()).toEqual(["late.env"]);
  git("checkout", "-q", "--orphan", "fresh");
  commit("later.env");
  git("branch", "-qD", "main");
  git("reflog", "expire", "--expire=now", "--all");
  git("gc", "-q", "--prune=now");
  commit("latest.env");
  expect(await found()).toEqual(["late.env", "later.env", "latest.env"]);
});

test("a history that is still being searched, or has too many names, is not known", async () => {
  const { top } = newRepository();
  const late = historyOf({ maxWaitMs: 0 });
  expect((await late.namesOf(top)).problem("history")).toBe("whose history is still being searched");
  expect((await late.namesOf(top)).problem("index")).toBeUndefined();
  late.close();
  const many = await historyOf({ maxNames: 1 }).namesOf(top);
  expect(many.problem("history")).toBe("whose history has more than 1 names");
});

test("a directory without a repository has no names, and one that git cannot read is not known", async () => {
  const { top } = newRepository();
  expect((await historyOf().namesOf(join(top, "a b"))).problem("history")).toBeUndefined();
  rmSync(join(top, ".git/objects"), { recursive: true });
  expect((await historyOf().namesOf(top)).problem("history")).toMatch(
    /^whose history cannot be searched \(fatal: not a/,
  );
});

test("a search runs no program that the settings of the repository name", async () => {
  const { top, git } = newRepository();
  const marker = join(top, "ran");
  git("config", "log.showSignature", "true");
  git("config", "gpg.program", `${top}/program`);
  git("config", "core.pager", `touch ${marker}`);
  git("config", "core.fsmonitor", `touch ${marker}`);
  git("config", "diff.external", `touch ${marker}`);
  writeFileSync(join(top, "program"), `#!/bin/sh\ntouch ${marker}\n`, { mode: 0o755 });
  const tree = git("rev-parse", "HEAD^{tree}").trim();
  const signed = `tree ${tree}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\ngpgsig -----BEGIN PGP SIGNATURE-----\n x\n -----END PGP SIGNATURE-----\n\nsigned\n`;
  const id = execFileSync("git", ["-C", top, "hash-object", "-t", "commit", "-w", "--stdin"], { input: signed });
  git("update-ref", "refs/heads/signed", id.toString().trim());
  const names = await historyOf().namesOf(top);
  expect(names.select("history", ["removed"])).toContain("removed.env");
  expect(existsSync(marker)).toBe(false);
  git("log", "-1", "signed");
  expect(existsSync(marker), "control: git runs it").toBe(true);
});

test("a history whose names are too long is not known, and takes little memory", async () => {
  const { top } = newRepository();
  const endless = "printf '\\0'; head -c 100000000 /dev/zero | tr '\\0' x";
  const confine: Sandbox["confine"] = (_, place) => sandbox.confine(["/bin/sh", "-c", endless], place);
  const options = { sandbox: { confine }, env: () => environmentOf({}), maxWaitMs: 60_000 };
  const names = await createGitHistory(options).namesOf(top);
  expect(names.problem("history")).toContain("names of more than 64 MiB");
});
