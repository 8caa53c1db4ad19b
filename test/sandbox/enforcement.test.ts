import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { RuleConfig } from "../../src/policy/rules.ts";
import { openSandbox, type Sandbox } from "../../src/sandbox/sandbox.ts";
import {
  callTool,
  judgeBy,
  openTestWorkspace,
  planCall,
  type RunOptions,
  type TestWorkspace,
} from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";
import { casesOf } from "../breadth.ts";
import { emptyDirectory } from "../empty-directory.ts";

const supervisor = createSupervisor({ replicaId: `wall-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
let sandbox: Sandbox;
let site: TestWorkspace;

const secret = "TOPSECRET";
const rules: RuleConfig = {
  read: { "*": "allow", "*.env": "deny", "secrets/*": "deny", id_rsa: "deny", "conf/db.yaml": "ask" },
  edit: { "locked/*": "deny" },
};
/** The fixture of the red team's cases: a repository with files that rules deny. */
const fixture: Record<string, string> = {
  ".env": `TOKEN=${secret}1\n`,
  "prod.env": `TOKEN=${secret}2\n`,
  "secrets/key.txt": `${secret}3\n`,
  "secrets/id": `${secret}4\n`,
  id_rsa: `${secret}5\n`,
  "conf/db.yaml": `password: ${secret}6\n`,
  "public/a.txt": "public a\n",
  "public/sub/b.txt": "public b\n",
  "sub/x.txt": "x\n",
  "locked/f.txt": "locked\n",
  list: ".env\n",
  ".gitignore": ".env\nprod.env\nsecrets/\nid_rsa\nconf/\n",
  ".opencode/config.toml": "",
  ".vscode/settings.json": "{}\n",
};

beforeAll(async () => {
  sandbox = await openSandbox({
    wanted: { profile: "workspace-write", network: "open" },
    ...{ agents: new Map(), writable: [], hidden: [], maxMasks: 20 },
  });
  expect(sandbox.problem).toBeUndefined();
  site = await openTestWorkspace(fixture);
  site.judge = judgeBy(rules);
  symlinkSync("public/sub", join(site.directory, "link"));
  mkdirSync(join(site.directory, "empty"));
  git("init", "-q", "-b", "main");
  git("config", "user.email", "a@example.com");
  git("config", "user.name", "A");
  writeFileSync(join(site.directory, ".git/hooks/pre-commit"), "#!/bin/sh\n", { mode: 0o755 });
  git("add", ".");
  git("commit", "-q", "-m", "first");
  execFileSync("cp", ["-a", `${site.directory}/.`, join(site.outside, "template")]);
});
afterAll(async () => {
  await site.remove();
  await supervisor.close();
  await pipes.close();
});

/** Gives the workspace the state of the fixture again. */
function restore(): void {
  emptyDirectory(site.directory);
  execFileSync("cp", ["-a", `${site.outside}/template/.`, site.directory]);
}

const git = (...args: string[]) => execFileSync("git", ["-C", site.directory, ...args]).toString();

const bash = () => createBash({ supervisor, sandbox, pipes });

/** Runs a command inside, on the fixture; the marker that it prints first shows that it was started. */
async function run(command: string, options: RunOptions = {}, judge = judgeBy(rules)) {
  restore();
  site.judge = judge;
  const result = await callTool(site, bash(), { command: `echo started; { ${command}\n}` }, options);
  expect(result.written).toMatch(/^started\n/);
  return { ...result, printed: result.written.replace("started\n", "") };
}

/** Runs a command where rules restrict nothing, as a control: it must do what the other rules forbid. */
function runUnmasked(command: string) {
  const files = [...Object.keys(fixture), ".git/config", ".git/hooks/pre-commit"];
  const paths = files.map((file) => join(site.directory, file));
  return run(command, { files: { read: paths, edit: paths } }, judgeBy({ read: "allow", edit: "allow" }));
}

const leak = /TOPSECRET|VE9QU0VDUkVU|T\s+O\s+P\s+S/;

/** Command lines that read a file which rules do not allow to read. */
const reads = [
  "cat .env",
  "grep -ir secret .",
  "grep -he. .env",
  "head prod.[[:alpha:]]nv",
  "cat prod[[:punct:]]env",
  "tar -cf - -C secrets key.txt",
  "tar --dir secrets -c key.txt",
  "env --ch secrets cat id",
  "command -p cd secrets && cat key.txt",
  "cd link/../secrets; cat key.txt; cd -; cat secrets/id",
  "diff -Nur secrets empty",
  "mv secrets public/s; cat public/s/* secrets/*",
  "ln -s secrets nd; cat nd/key.txt; rm nd",
  "ln .env hard.txt; cat hard.txt",
  "cp -r . /tmp/copy.$$; cat /tmp/copy.$$/.env /tmp/copy.$$/secrets/*; rm -rf /tmp/copy.$$",
  "cat /proc/self/cwd/.env /proc/self/root$PWD/id_rsa",
  "python3 -c 'print(open(\".env\").read())'",
  "chmod 644 .env; cat .env",
  "xargs cat < list",
  "git diff --no-index /dev/null .env",
  "git grep --no-index -h TOPSECRET",
  "git blame --contents .env public/a.txt; git hash-object -w .env | xargs git cat-file -p",
  "mv conf c2; cat c2/db.yaml",
  "bash -c 'cat < .env'; while read -r l; do echo $l; done < id_rsa",
  "umount .env; mount --bind public/a.txt .env; cat .env",
  "exec 3<.env; cat <&3",
  "dd if=.env; od -c .env; base64 -w0 id_rsa; strings id_rsa; sort prod.env",
];

/** Command lines that change a path which rules deny to edit, or that is protected. */
const changes = [
  "echo X > locked/f.txt",
  "sed -i s/locked/X/ locked/f.txt",
  "rm -rf locked",
  "mv locked l2",
  "git mv locked/f.txt public/f.txt",
  "git rm -q locked/f.txt",
  "chmod 600 locked/f.txt",
  "ln -sfn /tmp locked",
  "echo X > locked/new.txt",
  "shuf -eo .git/hooks/pre-commit X",
  "echo X >> .git/config",
  "git config core.pager 'touch pwned'",
  "mv .git g2",
  "rm -rf .git/hooks",
  "echo X > .git/hooks/post-checkout",
  "echo X > .opencode/config.toml",
  "mkdir -p .opencode/tool",
  "echo X > .vscode/settings.json; echo X > .vscode/tasks.json",
  "truncate -s0 .vscode/settings.json; unlink .vscode/settings.json; rmdir .vscode",
  "cp public/a.txt locked/f.txt; tee locked/f.txt < list; dd if=list of=locked/f.txt",
  'python3 -c \'import os; os.rename("locked", "x")\'',
];

/** Every fourth case: each starts the sandbox, and many copy the fixture. */
const sampleOf = (all: readonly string[]) => all.filter((_, i) => i % 4 === 0);

describe("a file that rules do not allow to read", () => {
  test.each(casesOf(reads, sampleOf(reads)))("%s", async (command) => {
    expect((await runUnmasked(command)).printed, "control").toMatch(leak);
    expect((await run(command)).printed).not.toMatch(leak);
  });

  test("is readable for the call that was allowed to read it, and no other one is", async () => {
    const read = [join(site.directory, ".env")];
    expect((await run("cat .env prod.env", { files: { read } })).printed).toMatch(
      /SECRET1[\s\S]*prod.env: Permission denied/,
    );
  });

  test("cannot be added to a commit, and git reports why", async () => {
    expect((await run("git add -f .env || echo refused; git status --short")).printed).toMatch(
      /Permission denied[\s\S]*refused\n$/,
    );
  });
});

/** Files of the workspace with their content, and the links and directories. */
const stateOf = () =>
  execFileSync(
    "bash",
    [
      "-c",
      "find . -path ./.git/objects -prune -o -path ./.git/logs -prune -o -printf '%y %m %p\\n' -type f -exec md5sum {} + | sort",
    ],
    { cwd: site.directory },
  ).toString();

describe("a path that rules deny to edit, or that is protected", () => {
  test.each(casesOf(changes, sampleOf(changes)))("%s", async (command) => {
    restore();
    const before = stateOf();
    spawnSync("bash", ["-c", command], { cwd: site.directory });
    expect(stateOf(), "control: outside the sandbox").not.toBe(before);
    restore();
    await run(command);
    expect(stateOf()).toBe(before);
  });

  test("can be changed by the call that was allowed to", async () => {
    const files = { edit: [".git/config", "locked/f.txt"].map((file) => join(site.directory, file)) };
    const { printed } = await run("git config x.y z && echo X > locked/f.txt; cat locked/f.txt; git config x.y", {
      files,
    });
    expect(printed).toBe("X\nz\n");
  });
});

test("a command that names what it changes asks for that, and can change it", async () => {
  restore();
  site.judge = judgeBy(rules);
  const input = {
    command: "git config a.b c; rm -r .vscode; ls -d .vscode; echo X > locked/f.txt",
    edits: [".git/config", ".vscode"],
  };
  const call = await planCall(site, bash(), input);
  expect(call.plan.asks.map(({ permission, patterns }) => [permission, ...patterns])).toEqual([
    ["bash", input.command],
    ["edit", ".git/config"],
    ["edit", ".vscode"],
  ]);
  const { written } = await call.run();
  expect(written).toMatch(/^ls: cannot access '.vscode'[\s\S]*f.txt: Read-only file system\n$/);
  expect(git("config", "a.b")).toBe("c\n");
});

describe("a directory that git takes for a repository although it is no .git", () => {
  const config =
    '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n\tfsmonitor = "touch ran; false"\n';
  const make = () => {
    restore();
    for (const name of ["objects", "refs"]) mkdirSync(join(site.directory, "evil", name), { recursive: true });
    writeFileSync(join(site.directory, "evil/HEAD"), "ref: refs/heads/main\n");
    writeFileSync(join(site.directory, "evil/config"), config);
  };
  const hasRun = () => existsSync(join(site.directory, "ran"));

  test("git status runs nothing there", async () => {
    make();
    spawnSync("bash", ["-c", "cd evil; git status"], { cwd: site.directory, env: { PATH: process.env.PATH } });
    expect(hasRun(), "control: outside the sandbox").toBe(true);
    make();
    const { written } = await callTool(site, bash(), { command: "cd evil; git status; echo done" });
    expect(written).toMatch(/(cannot use bare|Not a git) repository[\s\S]*done\n$/);
    expect(hasRun()).toBe(false);
  });
});

describe("ordinary work inside", () => {
  test("git adds, commits, branches, stashes and diffs", async () => {
    const { printed, metadata } = await run(
      [
        "echo more >> public/a.txt; echo new > public/c.txt; git add public; git commit -qm second",
        "git checkout -qb topic; echo y > sub/x.txt; git diff --stat; git stash -q; git stash pop -q; git commit -qam third",
        "git checkout -q main; git merge -q topic; git log --oneline | wc -l; git status --short; git worktree list | wc -l",
      ].join("\n"),
    );
    expect(metadata?.exit).toBe(0);
    expect(printed).toMatch(/1 file changed[\s\S]*\n3\n1\n$/);
  });

  test("files and directories are made, renamed and removed", async () => {
    const { printed } = await run("mkdir -p a/b; echo 1 > a/b/c; mv a z; cat z/b/c; rm -r z public; ls");
    expect(printed).toBe("1\nconf\nempty\nid_rsa\nlink\nlist\nlocked\nprod.env\nsecrets\nsub\n");
  });
});

describe("the result of a command", () => {
  test("says how many files it did not see, and which", async () => {
    expect((await run("true")).metadata?.sandbox).toMatchObject({
      hidden: { count: 5, paths: ["secrets/", "conf/db.yaml", ".env", "id_rsa", "prod.env"] },
      readOnly: { count: 5 },
    });
  });

  test("names the rule and the next step after a failure on a hidden file", async () => {
    const { note } = await run("cat .env");
    expect(note).toContain(
      'command exited with code 1\n.env is hidden from this command: config rule 1 (read "*.env" deny)',
    );
    expect(note).toContain("Use the read tool");
  });

  test("names the rule after a failed change", async () => {
    expect((await run("echo X > locked/f.txt")).note).toContain("locked is read-only for this command");
  });

  test("says nothing about files where nothing is hidden", async () => {
    const { metadata } = await run("true", {}, judgeBy({ read: "allow" }));
    expect(metadata?.sandbox).not.toHaveProperty("hidden");
  });
});

describe("more files than can be hidden", () => {
  const many = () => {
    for (let i = 0; i < 30; i++) writeFileSync(join(site.directory, `public/${i}.env`), secret);
  };
  test("ask before the command starts, with their number", async () => {
    restore();
    many();
    site.judge = judgeBy(rules);
    const { asked, written } = await callTool(site, bash(), { command: "cat public/7.env" });
    expect(asked).toMatchObject([{ permission: "read", alwaysAsk: expect.stringContaining("holds 34 files") }]);
    expect(written).toBe(secret);
  });
  test("stop the command if that is refused", async () => {
    restore();
    many();
    site.judge = judgeBy(rules);
    const refuse = () => {
      throw new Error("refused");
    };
    await expect(callTool(site, bash(), { command: "touch public/ran" }, { onAsk: refuse })).rejects.toThrow("refused");
    expect(existsSync(join(site.directory, "public/ran"))).toBe(false);
  });
});

test("rules that allow to read only some files show those, and nothing else can be written", async () => {
  const judge = judgeBy({ read: { "*": "ask", "public/*": "allow" }, bash: "allow" });
  const { printed, metadata } = await run(
    "find . -type f; cat list; echo X > new; echo X > public/new; ls public",
    {},
    judge,
  );
  expect(printed).toMatch(
    /^.\/public\/[\s\S]*cat: list: No such file[\s\S]*new: Read-only file system[\s\S]*a.txt\nnew\nsub\n$/,
  );
  expect(printed).not.toMatch(/secrets|\.git\//);
  expect(metadata?.sandbox).toMatchObject({ hidden: { count: 1, paths: ["./"] } });
});

test("rules that deny each edit make the workspace read-only", async () => {
  const { printed } = await run("echo X > list; rm -rf public; mkdir d; cat list", {}, judgeBy({ edit: "deny" }));
  expect(printed).toMatch(/Read-only file system[\s\S]*\.env\n$/);
});

test("a file that vanishes before the command starts leaves nothing on the host", async () => {
  restore();
  site.judge = judgeBy(rules);
  const masked = await sandbox.confine(["true"], {
    ...{ agent: "build", cwd: site.directory, workspace: site.directory, directories: [] },
    files: { rules: site.judge.fileRules(), read: [], edit: [] },
  });
  rmSync(join(site.directory, "prod.env"));
  const [program, ...args] = masked.argv;
  spawnSync(program, args, { stdio: ["ignore", "pipe", "pipe", ...masked.descriptors] });
  expect(existsSync(join(site.directory, "prod.env")), "control: bubblewrap makes it").toBe(true);
  await masked.release();
  expect(existsSync(join(site.directory, "prod.env"))).toBe(false);
  expect(readFileSync(join(site.directory, ".env"), "utf8")).toContain(secret);
});

test.runIf(process.getuid?.() === 0)("the same holds where the service runs as another user than root", () => {
  restore();
  const user = 65_534;
  execFileSync("chown", ["-R", String(user), dirname(site.directory)]);
  const script = join(import.meta.dirname, "as-user.ts");
  const lines = [
    "id -u; cat public/a.txt .env secrets/key.txt",
    "echo X > locked/f.txt; echo X > sub/x.txt; mv conf c2; cat sub/x.txt",
  ];
  const env = { PATH: process.env.PATH, HOME: "/nonexistent", GIT_CONFIG_COUNT: "0" };
  const options = { cwd: site.directory, uid: user, gid: user, env, encoding: "utf8" } as const;
  const { stdout, stderr } = spawnSync(process.execPath, [script, JSON.stringify(rules), ...lines], options);
  execFileSync("chown", ["-R", "0", dirname(site.directory)]);
  expect(stderr).toBe("");
  expect(stdout).toMatch(
    /^started\n65534\npublic a\ncat: .env: Permission denied\ncat: secrets\/key.txt: No such file/,
  );
  expect(stdout).toMatch(/started\nX\n[\s\S]*locked\/f.txt: Read-only file system[\s\S]*mv: cannot move 'conf'/);
  expect(stdout).not.toMatch(leak);
});
