import { execFileSync } from "node:child_process";
import { beforeAll, expect, test } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { fromConfig } from "../../src/policy/rules.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";

/** Repositories: a commit of `past` has files that rules do not allow to read, `tracked` has one today, `clean` never had any. */
const fixture = `
set -e
new() {
  mkdir -p $1/src && cd $1 && git init -q -b main . && git config user.email a@example.com && git config user.name A
  echo 1 > src/a.ts && git add . && git commit -qm first && cd ..
}
new past; new clean; new tracked
cd past
mkdir secrets && echo TOPSECRET > .env && echo TOPSECRET > secrets/key.txt
git add -f . && git commit -qm second && git rm -qr .env secrets && echo 2 > src/a.ts && git commit -qam third
ln -s src/a.ts .env && touch main
cd ../clean && echo 2 > src/a.ts && git commit -qam second
cd .. && ln -s past/src link && git init -q --bare bare && cd tracked && echo TOPSECRET > .env && git add -f . && git commit -qm second
`;

const service = useService();
beforeAll(() => {
  execFileSync("/bin/bash", ["-c", fixture], { cwd: service.workspace });
});

/** Plans a command line that rules for commands allow whatever it is: only what it reads can make it ask. */
async function planned(command: string, workdir: string) {
  const read = { "*": "allow", "*.env": "deny", "*secrets/*": "ask" } as const;
  return await connect(service, "caller").tools.planTool({
    tool: "bash",
    input: { command, workdir },
    rules: fromConfig({ bash: "allow", edit: "allow", external_directory: "allow", read }, "/home/u"),
    onlyRules: true,
  });
}

test.each([
  "git show HEAD~1",
  "git log -p",
  "git log -S TOPSECRET",
  "git diff HEAD~1",
  "git diff --cached HEAD~1",
  "git cat-file --batch",
  "git grep TOPSECRET HEAD~1",
  "git grep x $(git rev-list --all)",
  "git archive HEAD~1",
  "git bundle create b --all",
  "git format-patch --stdout -2",
  "git fast-export --all",
  "git worktree add ../copy HEAD~1",
  "git clone -q . ../copy",
  "git someone-s-alias",
  "git checkout -q HEAD~1 && node x.js",
  "git restore -s HEAD~1 .; cat x",
  "bash -c 'git reset --hard HEAD~1; npm test'",
  "for one in 1; do git checkout HEAD~$one; node x.js; done",
  "cat .git/objects/pack/x",
  "cd src && git show HEAD~1",
  "git show HEAD~1 -- $PWD/.",
  "git show HEAD~1 -- nowhere/.",
  "git log -p -- :.",
  "git log -p -- :/",
  "git log -p -- src ':(top)secrets'",
  "git log -p --encoding src/a.ts",
  "git log -p --ws-error-highlight src/a.ts",
  "git log -p main --",
  "git diff HEAD~2:secrets HEAD~1:secrets",
  "git grep TOPSECRET HEAD~1:secrets",
  "git show HEAD~1 -- src $HOME",
  "git --git-dir=.git show HEAD~1",
  `true ${"{".repeat(101)}; git show HEAD~1`,
  `true ${"$(".repeat(101)}; git show HEAD~1`,
  `${"true; ".repeat(2000)} git show HEAD~1`,
])("%s asks, or is denied, since the history has files that may not be read", async (command) => {
  const { action, decisions } = await planned(command, "past");
  expect(action).not.toBe(PermissionAction.ALLOW);
  expect(decisions.map(({ permission }) => permission)).toContain("read");
  expect((await planned(command, "clean")).action, "control: a history without such files").toBe(
    PermissionAction.ALLOW,
  );
});

test.each([
  "git log -p --all -- .env",
  "git log -L1,2:secrets/key.txt",
  "git show HEAD~1:.env",
  "git cat-file -p HEAD~1:.env",
  "git blame HEAD~1 -- .env",
])("%s asks, or is denied, since it names a file that may not be read", async (command) => {
  expect((await planned(command, "past")).action).not.toBe(PermissionAction.ALLOW);
});

test("a comparison that leaves out lines by a pattern asks, or is denied, since it shows which lines match", async () => {
  const command = "git diff --name-only -I ^TOP";
  expect((await planned(command, "tracked")).action).not.toBe(PermissionAction.ALLOW);
  expect((await planned(command, "clean")).action, "control: no such file").toBe(PermissionAction.ALLOW);
});

test.each(["git diff --stat", "git diff --name-only", "git status"])(
  "%s asks nothing where git tracks a file that may not be read",
  async (command) => {
    expect((await planned(command, "tracked")).action).toBe(PermissionAction.ALLOW);
  },
);

test("git asks by the repository that its options name", async () => {
  expect((await planned("git -C past show HEAD~1", ".")).action).toBe(PermissionAction.DENY);
  expect((await planned("git -C .. -C past show HEAD~1", "clean")).action).toBe(PermissionAction.DENY);
  expect((await planned("git -C ../clean show HEAD~1", "past")).action).toBe(PermissionAction.ALLOW);
  expect((await planned("git -C link show HEAD~1", ".")).action, "a link to a directory of it").toBe(
    PermissionAction.DENY,
  );
  expect((await planned("git --git-dir=.git -C ../past show HEAD~1", "clean")).action).toBe(PermissionAction.DENY);
});

test.each([
  "cd bare && git status",
  "git -C bare status",
  "git --git-dir=bare status",
  "env git -C bare/../bare status",
  "sudo -D bare git status",
])("%s asks, since git takes a directory for a repository that is none", async (command) => {
  expect((await planned(command, ".")).action).toBe(PermissionAction.ASK);
  expect((await planned(command.replaceAll("bare", "clean"), ".")).action, "control").toBe(PermissionAction.ALLOW);
});

test.each([
  "git status",
  "git log --oneline --stat",
  "git diff",
  "git diff src",
  "git grep x",
  "git show HEAD:src/a.ts",
  "git log -p -- src/a.ts",
  "git blame src/a.ts",
  "git show HEAD~1 -- src",
  "git show HEAD~1 -- src ':!src/gen'",
  "git show HEAD~1:src",
  "git diff HEAD~1:src HEAD:src",
  "git log -p -- :src",
  "git add . && git commit -m x",
  "git branch -a; git tag",
  "git ls-tree -r HEAD",
  "git checkout HEAD~1",
  "git stash",
  "git merge topic",
  "git gc",
  "grep -r x src",
])("%s asks nothing although the history has such files", async (command) => {
  expect((await planned(command, "past")).action).toBe(PermissionAction.ALLOW);
});

test("the request names the files of the history", async () => {
  const { decisions } = await planned("git log -p", "past");
  const read = decisions.filter(({ permission }) => permission === "read");
  expect(read.map(({ pattern, action }) => [pattern, action])).toEqual([
    ["past/.env", PermissionAction.DENY],
    ["past/secrets/key.txt", PermissionAction.ASK],
  ]);
});

test.each([
  "git config --global core.hooksPath x",
  "git config --glob core.hooksPath x",
  "git config --system core.hooksPath x",
  "git config --file .git/config core.hooksPath x",
  "git config -f.gitmodules core.hooksPath x",
  "git config --comment --get core.hooksPath x",
  "git config core.hooksPath x",
])("%s asks, since git runs what its settings name", async (command) => {
  expect((await planned(command, "clean")).action).toBe(PermissionAction.ASK);
});

test.each(["git config --global user.name", "git config -f .gitmodules --get-regexp path", "git config --list"])(
  "%s asks nothing, since it only shows settings",
  async (command) => {
    expect((await planned(command, "clean")).action).toBe(PermissionAction.ALLOW);
  },
);
