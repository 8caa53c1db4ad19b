import { execFileSync } from "node:child_process";
import { appendFile, chmod, mkdir, mkdtemp, readFile, rename, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply as Reply, ToolEffects } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { type Service, startService } from "./service.ts";

/** Has a call asked, changes something while the person thinks, and answers once: what the call asks after that. */
async function drift(
  service: Service,
  call: { tool: string; input: Record<string, string> },
  change: () => Promise<unknown>,
) {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const call1 = { sessionId, callId: "c1", ...call };
  const first = await read(agent.tools.executeTool(call1)).until("permissionAsked");
  await change();
  // The change may have been a restart: what waits is still the same ask.
  const person = connect(service, "approver");
  const stream = read(connect(service, "caller").tools.executeTool(call1));
  await stream.until("permissionAsked");
  const answer = { sessionId, permissionId: first.id, reply: Reply.ONCE, expectedDigest: first.digest };
  await person.permissions.respondToPermission(answer);
  const { event } = await stream.find(
    ({ event }) => event.case === "permissionAsked" || (event.case === "part" && event.value.state.case === "running"),
  );
  const outcomes = stream.seen.flatMap(({ event }) =>
    event.case === "permissionSettled" ? [event.value.outcome] : [],
  );
  expect(outcomes, JSON.stringify(call.input)).toEqual([PermissionOutcome.ONCE]);
  return { first, sessionId, again: event.case === "permissionAsked" ? event.value : undefined };
}

const command = { tool: "bash", input: { command: "./build.sh", workdir: "made" } };

async function prepare(settings = ""): Promise<Service> {
  const service = await startService({ settings });
  await mkdir(join(service.workspace, "made"));
  await writeFile(join(service.workspace, "made/build.sh"), "echo built\n", { mode: 0o755 });
  return service;
}

async function restart(service: Service): Promise<void> {
  await service.stop();
  await service.start();
}

test("without a change one answer is enough, also across a restart", async () => {
  const service = await prepare();
  expect((await drift(service, command, () => restart(service))).again).toBeUndefined();
});

test("the file that will be written", async () => {
  const service = await prepare();
  const write = { tool: "write", input: { filePath: "new.txt", content: "new\n" } };
  const outside = join(service.data, "../elsewhere");
  await mkdir(outside);
  const { first, again } = await drift(service, write, async () => {
    await rm(join(service.workspace, "made"), { recursive: true });
    await symlink(outside, join(service.workspace, "new.txt"));
  });
  expect(again?.digest).not.toBe(first.digest);
});

test("the folder that a command runs in, under the same name", async () => {
  const service = await prepare();
  const { first, again } = await drift(service, command, async () => {
    await rename(join(service.workspace, "made"), join(service.workspace, "was"));
    await mkdir(join(service.workspace, "made"));
    await writeFile(join(service.workspace, "made/build.sh"), "echo built\n", { mode: 0o755 });
  });
  expect(again).toMatchObject({ patterns: first.patterns });
  expect(again?.digest).not.toBe(first.digest);
});

test("the script that a command runs, by whatever name", async () => {
  const service = await prepare();
  await mkdir(join(service.workspace, "tools"));
  await writeFile(join(service.workspace, "tools/x.sh"), "echo built\n");
  for (const [line, file] of [
    ["./build.sh", "made/build.sh"],
    ["bash build.sh --fast", "made/build.sh"],
    ["timeout 60 sh ../tools/x.sh", "tools/x.sh"],
  ] as const) {
    const call = { tool: "bash", input: { command: line, workdir: "made" } };
    const { first, again } = await drift(service, call, () =>
      writeFile(join(service.workspace, file), `echo ${line}\n`),
    );
    expect(again).toMatchObject({ patterns: first.patterns });
    expect(again?.digest).not.toBe(first.digest);
  }
});

/** Lines that run code, the file of it that changes after the ask, and how the approval is bound to it. */
const code: readonly (readonly [line: string, file: string, bound: "content" | "tree" | "unbound"])[] = [
  ["sh run.sh", "run.sh", "content"],
  [". ./run.sh", "run.sh", "content"],
  ["cd sub && ./x", "sub/x", "content"],
  ["bash -c 'sh run.sh'", "run.sh", "content"],
  ["node -r ./b.js a.js", "b.js", "content"],
  ["bash --rcfile run.sh", "run.sh", "content"],
  ["perl a.pl", "a.pl", "content"],
  ["time sh run.sh", "run.sh", "content"],
  ["env -S 'sh run.sh'", "run.sh", "content"],
  ["bash < run.sh", "run.sh", "content"],
  ["cat run.sh | sh", "run.sh", "content"],
  ["sh ./*.sh", "run.sh", "content"],
  ["sh $(ls *.sh)", "run.sh", "tree"],
  ['"$PWD"/sub/x', "sub/x", "tree"],
  ["BASH_ENV=./run.sh bash -c true", "run.sh", "content"],
  ["env BASH_ENV=./run.sh bash -c true", "run.sh", "content"],
  ["find . -name '*.sh' -exec sh {} ';'", "run.sh", "content"],
  ["python3 - < a.py", "a.py", "content"],
  ["xargs -I{} sh -c {} < list", "list", "content"],
  ["awk -f a.awk list", "a.awk", "content"],
  ["sed -f a.sed list", "a.sed", "content"],
  ["python3 -m b", "b.py", "content"],
  ["python3 -Im b", "b.py", "content"],
  ["make", "Makefile", "content"],
  ["make -f other.mk", "other.mk", "content"],
  ["npm test", "package.json", "content"],
  ["npm test", "run.sh", "content"],
  ["npm -C sub test", "sub/run.sh", "content"],
  ["make -C sub --directory=apply", "sub/apply/Makefile", "content"],
  ["make -sf other.mk", "other.mk", "content"],
  ["make -ksC sub", "sub/Makefile", "content"],
  ["sed -nf a.sed list", "a.sed", "content"],
  ["npm --prefix apply --prefix sub test", "sub/package.json", "content"],
  ["docker build -t x sub", "sub/Dockerfile", "content"],
  ["just --justfile=sub/justfile", "sub/justfile", "content"],
  ["python3 a.py", "b.py", "tree"],
  ["node a.js", "b.js", "tree"],
  ["git apply p.patch", "p.patch", "content"],
  ["patch -p1 < p.patch", "p.patch", "content"],
  ["cargo test", "Cargo.toml", "content"],
  ["env -C sub ./x", "sub/x", "content"],
  ["env --chdir=sub sh ./run.sh", "sub/run.sh", "content"],
  ["node dist/server", "dist/server.js", "content"],
  ["node -e 1", "hidden.js", "tree"],
  ["node -e 1", "dist/tracked.js", "tree"],
  ["node -e 1", "dist/server.js", "unbound"],
  ["git commit -m a", ".git/hooks/pre-commit", "content"],
  ["git commit -m a", "hooks/commit-msg", "content"],
  ["git lg", ".git/config", "content"],
  ["git -C inner commit -m a", "inner/.git/hooks/pre-commit", "content"],
  ["git --git-dir inner/.git commit -m a", "inner/.git/config", "content"],
  ["env -C inner git commit -m a", "inner/.git/hooks/pre-commit", "content"],
  ["git -C sub -C '' -C apply apply p.patch", "sub/apply/p.patch", "content"],
  ["cp list copy", "list", "unbound"],
];

async function prepareCode(service: Service): Promise<void> {
  const files = {
    "run.sh": "echo run\n",
    "sub/x": "#!/bin/sh\necho x\n",
    "a.js": 'require("./b.js");\n',
    "b.js": "console.log(1);\n",
    "a.pl": "print 1;\n",
    "a.py": "import b\n",
    "b.py": "print(1)\n",
    "a.awk": "{ print }\n",
    "a.sed": "s/a/b/\n",
    list: "echo 1\n",
    Makefile: "all:\n\ttrue\n",
    "other.mk": "all:\n\ttrue\n",
    "package.json": '{ "scripts": { "test": "sh run.sh" } }\n',
    "Cargo.toml": '[package]\nname = "a"\n',
    "sub/Makefile": "all:\n\ttrue\n",
    "sub/run.sh": "echo run\n",
    "sub/package.json": '{ "scripts": { "test": "sh run.sh" } }\n',
    "sub/Cargo.toml": '[package]\nname = "a"\n',
    "sub/Dockerfile": "FROM scratch\n",
    "sub/justfile": "all:\n  true\n",
    Dockerfile: "FROM scratch\n",
    "compose.yaml": "services: {}\n",
    "requirements.txt": "a\n",
    "test_a.py": "import b\n",
    "X.pm": "1;\n",
    "a.c": "int main() { return 0; }\n",
    ".npmrc": "\n",
    ".git/HEAD": "ref: refs/heads/main\n",
    "inner/.git/config": "\n",
    "inner/.git/hooks/pre-commit": "#!/bin/sh\n",
    "dist/server.js": "",
    "dist/tracked.js": "",
    "hidden.js": "",
    ".gitignore": "dist\n",
    ".ignore": "hidden.js\n",
    "sub/apply/Makefile": "all:\n\ttrue\n",
    "sub/apply/p.patch": "--- a/list\n+++ b/list\n@@ -1 +1 @@\n-echo 1\n+echo 3\n",
    ".git/config": "[core]\n\thooksPath = hooks\n",
    ".git/hooks/pre-commit": "#!/bin/sh\n",
    ".git/hooks/post-merge": "#!/bin/sh\n",
    "hooks/commit-msg": "#!/bin/sh\n",
    "p.patch": "--- a/list\n+++ b/list\n@@ -1 +1 @@\n-echo 1\n+echo 2\n",
  };
  for (const directory of ["sub/apply", "dist", "hooks", ".git/hooks", ".git/objects", ".git/refs", "inner/.git/hooks"])
    await mkdir(join(service.workspace, directory), { recursive: true });
  for (const [name, text] of Object.entries(files))
    await writeFile(join(service.workspace, name), text, { mode: 0o755 });
  execFileSync("git", ["add", "-f", "dist/tracked.js"], { cwd: service.workspace });
}

/** Has a line asked, changes a file, and answers all of its requests: the first of them, and what the call asks after that. */
async function answerAfter(service: Service, command: string, change: () => Promise<unknown>) {
  const agent = connect(service, "caller");
  const { permissions } = connect(service, "approver");
  const sessionId = await agent.newSession();
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command } }));
  const first = await stream.until("permissionAsked");
  const { permissions: open } = await permissions.listPermissions({ sessionId });
  await change();
  for (const { id } of open) await permissions.respondToPermission({ sessionId, permissionId: id, reply: Reply.ONCE });
  const asked = new Set(open.map(({ id }) => id));
  const { event } = await stream.find(
    ({ event }) =>
      (event.case === "permissionAsked" && !asked.has(event.value.id)) ||
      (event.case === "part" && event.value.state.case === "running"),
  );
  return { first, again: event.case === "permissionAsked" ? event.value : undefined };
}

test("what a line runs or reads as code: it is asked again, with the names of what changed", async () => {
  const service = await startService({ settings: '[permission]\nedit = "allow"\nread = "allow"\n' });
  const found: (typeof code)[number][] = [];
  for (const [line, file] of code) {
    await prepareCode(service);
    const change = () => appendFile(join(service.workspace, file), "\n");
    const { first, again } = await answerAfter(service, line, change);
    const changed = again?.changed.replace(/ \(\d+ to \d+ bytes\)$/, "");
    if (again) expect(changed, line).toBe(`changed since you were asked: ${file}`);
    const isShown = first.view?.files.some(({ path }) => path === file) ?? false;
    found.push([line, file, again ? (isShown ? "content" : "tree") : "unbound"]);
  }
  expect(found).toEqual(code);
}, 120_000);

/** More lines that run code, and the file of it that changes: what changes is noticed, or the request says that it is not bound. */
const attacks: readonly (readonly [line: string, file: string])[] = [
  // Options, in all of their forms.
  ["sed -nf a.sed list", "a.sed"],
  ["sed --file=a.sed list", "a.sed"],
  ["awk -v x=1 -fa.awk list", "a.awk"],
  ["gawk -i a.awk 'BEGIN{}'", "a.awk"],
  ["sed '1e sh run.sh' list", "run.sh"],
  ["awk 'BEGIN { system(\"sh run.sh\") }'", "run.sh"],
  ["node --import=./b.js a.js", "b.js"],
  ["node -e \"require('./b.js')\"", "b.js"],
  ["python3 -c 'import b'", "b.py"],
  ["perl -I. -MX a.pl", "X.pm"],
  ["bash --init-file=run.sh -i", "run.sh"],
  ["make -C sub", "sub/Makefile"],
  ["make --directory=sub", "sub/Makefile"],
  ["npm --prefix sub test", "sub/run.sh"],
  ["npm test --prefix=sub", "sub/package.json"],
  ["npm test", ".npmrc"],
  ["cargo run --manifest-path sub/Cargo.toml", "sub/Cargo.toml"],
  ["pip install -r requirements.txt", "requirements.txt"],
  ["pytest", "test_a.py"],
  ["docker build .", "Dockerfile"],
  ["docker build -f sub/Dockerfile .", "run.sh"],
  ["docker compose up", "compose.yaml"],
  ["docker run -v .:/w image sh /w/run.sh", "run.sh"],
  // Programs that run others by an option.
  ["sort --compress-program=./sub/x list", "sub/x"],
  ["rg --pre ./sub/x pattern", "sub/x"],
  ["tar -I ./sub/x -cf a.tar list", "sub/x"],
  ["tar cf a.tar list --checkpoint-action=exec='sh run.sh'", "run.sh"],
  ["split --filter='sh run.sh' list", "run.sh"],
  ["rsync -e ./sub/x list host:/", "sub/x"],
  ["ssh -F list host", "list"],
  ["curl -K list", "list"],
  ["man -P ./sub/x ls", "sub/x"],
  ["cc -wrapper ./sub/x a.c", "sub/x"],
  ["find . -maxdepth 0 -exec ./sub/x ';'", "sub/x"],
  ["ssh host sh < run.sh", "run.sh"],
  ["ssh localhost sh run.sh", "run.sh"],
  ["trap 'sh run.sh' EXIT", "run.sh"],
  ["su -c 'sh run.sh'", "run.sh"],
  ["flock list -c 'sh run.sh'", "run.sh"],
  ["xargs sh < list", "run.sh"],
  ["xargs -a list ./sub/x", "sub/x"],
  ["busybox sh run.sh", "run.sh"],
  // Variables.
  ["GIT_PAGER=./sub/x git log", "sub/x"],
  ["env GIT_EXTERNAL_DIFF=./sub/x git diff", "sub/x"],
  ["EDITOR=./sub/x git commit", "sub/x"],
  ["LD_PRELOAD=./sub/x ls", "sub/x"],
  ["LESSOPEN='|./sub/x %s' less list", "sub/x"],
  // Text that bash reads.
  ["bash <<'E'\n. ./run.sh\nE", "run.sh"],
  ["cat <<'E' | sh\n. ./run.sh\nE", "run.sh"],
  ["sh -c '. ./run.sh'", "run.sh"],
  ["bash -c 'bash -c \"sh run.sh\"'", "run.sh"],
  ['eval "$(cat run.sh)"', "run.sh"],
  ["sh <(cat run.sh)", "run.sh"],
  ["if sh run.sh; then :; fi", "run.sh"],
  ["cp run.sh copy && sh copy", "run.sh"],
  ["cat run.sh > copy; sh copy", "run.sh"],
  ["source run.sh", "run.sh"],
  ["exec sh run.sh", "run.sh"],
  // Git: settings, hooks, and options that run programs.
  ["git status", ".git/config"],
  ["git lg", ".git/config"],
  ["git commit -m a", ".git/hooks/pre-commit"],
  ["git merge main", ".git/hooks/post-merge"],
  ["git commit -m a", "hooks/commit-msg"],
  ["GIT_DIR=inner/.git git commit -m a", "inner/.git/hooks/pre-commit"],
  ["env GIT_DIR=inner/.git git status", "inner/.git/config"],
  ["PATH=sub x", "sub/x"],
  ["find sub -name x -execdir ./x ';'", "sub/x"],
  ["bash -O extglob run.sh", "run.sh"],
  ["git -c core.pager=./sub/x log", "sub/x"],
  ["git -c alias.x='!sh run.sh' x", "run.sh"],
  ["git bisect run ./sub/x", "sub/x"],
  ["git rebase --exec 'sh run.sh' main", "run.sh"],
  ["git submodule foreach 'sh ../run.sh'", "run.sh"],
  ["git grep -O./sub/x pattern", "sub/x"],
  ["git difftool -x ./sub/x", "sub/x"],
  ["git archive --remote=. --exec=./sub/x main", "sub/x"],
  // Programs that start git.
  ["npx lint-staged", ".git/hooks/pre-commit"],
  ["gh pr create", "hooks/commit-msg"],
  ["git am p.patch", "p.patch"],
  ["git -C sub apply ../p.patch", "p.patch"],
  ["patch --input=p.patch", "p.patch"],
];

test("a file that a line runs changed: the line is asked again, or the request said that the file is not bound", async () => {
  const service = await startService({ settings: '[permission]\nedit = "allow"\nread = "allow"\n' });
  const unnoticed: (typeof attacks)[number][] = [];
  for (const [line, file] of attacks) {
    await prepareCode(service);
    const change = () => appendFile(join(service.workspace, file), "\n");
    const { first, again } = await answerAfter(service, line, change);
    const isSaid = first.view?.missing.some((text) => text.startsWith("other files that it may run")) ?? false;
    if (!again && !isSaid) unnoticed.push([line, file]);
  }
  expect(unnoticed).toEqual([]);
}, 300_000);

test("a link to code is switched, a directory of it is exchanged, a hook becomes executable: the line is asked again; without a change it is not", async () => {
  const service = await startService({ settings: '[permission]\nedit = "allow"\nread = "allow"\n' });
  await prepareCode(service);
  const at = (name: string) => join(service.workspace, name);
  await mkdir(at("other"));
  for (const name of ["x", "Makefile", "run.sh"]) await writeFile(at(`other/${name}`), "echo other\n", { mode: 0o755 });
  const relink = async (name: string, target: string) => {
    await rm(at(name), { force: true });
    await symlink(target, at(name));
  };
  const exchange = async () => {
    await rename(at("sub"), at("was"));
    await rename(at("other"), at("sub"));
    await rename(at("was"), at("other"));
  };
  await relink("link.sh", "run.sh");
  await relink("linked", "sub");
  await relink("loose.js", "b.js");
  const changes: [line: string, change: () => Promise<unknown>][] = [
    ["sh link.sh", () => relink("link.sh", "other/run.sh")],
    ["sh linked/x", () => relink("linked", "other")],
    ["cd linked && ./x", () => relink("linked", "sub")],
    ["make -C sub", exchange],
    ["sub/x", exchange],
    ["node a.js", () => relink("loose.js", "sub/x")],
    // Git runs no hook that is not executable, so the mode counts as well as the content.
    ["git commit -m a", () => chmod(at(".git/hooks/pre-commit"), 0o755)],
  ];
  await chmod(at(".git/hooks/pre-commit"), 0o644);
  for (const [line, change] of changes) expect((await answerAfter(service, line, change)).again, line).toBeDefined();
  for (const line of [...changes.map(([line]) => line), "git commit -m a", "git status", "docker build .", "sort --x"])
    expect((await answerAfter(service, line, async () => {})).again, line).toBeUndefined();
  execFileSync("mkfifo", [at("pipe.sh")]);
  const missingOf = async (line: string) => (await answerAfter(service, line, async () => {})).first.view?.missing;
  for (const line of ["git commit -m a", "sh < /dev/null"]) expect(await missingOf(line), line).toEqual([]);
  expect((await missingOf("timeout 1 sh pipe.sh"))?.join()).toContain("pipe.sh is not a file");
});

test("a line that runs code outside of the workspace: the request says that it is not bound", async () => {
  const service = await startService();
  const outside = await mkdtemp(join(tmpdir(), "toolgate-outside-"));
  onTestFinished(() => rm(outside, { recursive: true }));
  await writeFile(join(outside, "a.py"), "import b\n");
  const { first } = await answerAfter(service, `cd ${outside} && python3 a.py`, async () => {});
  expect(first.view).toMatchObject({ complete: false });
  expect(first.view?.missing.join()).toContain(`code in ${outside}, which is outside the workspace`);
});

test("code that changes again and again: the third request offers it as it is when it starts", async () => {
  const service = await startService();
  await prepareCode(service);
  const agent = connect(service, "caller");
  const person = connect(service, "approver");
  const sessionId = await agent.newSession();
  const stream = read(
    agent.tools.executeTool({ sessionId, callId: "c1", tool: "bash", input: { command: "sh run.sh" } }),
  );
  const changed: string[] = [];
  for (let round = 0; round < 3; round += 1) {
    const asked = await stream.until("permissionAsked");
    changed.push(asked.changed);
    expect(asked.view?.complete).toBe(round < 2);
    await appendFile(join(service.workspace, "run.sh"), "echo more\n");
    await person.permissions.respondToPermission({ sessionId, permissionId: asked.id, reply: Reply.ONCE });
  }
  const part = await stream.end();
  expect(part.state.value).toMatchObject({ output: expect.stringContaining("more") });
  const named = "changed since you were asked: run.sh";
  expect(changed).toEqual([
    "",
    `${named} (9 to 19 bytes)`,
    `${named} (19 to 29 bytes). They changed after each approval, so this one holds for them as they are when it starts.`,
  ]);
});

test("the program that is found for a name: it is replaced, or another one comes before it", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-programs-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const programs = ["before", "behind"].map((name) => join(folder, name));
  for (const name of programs) await mkdir(name);
  const put = (at: number, text: string) => writeFile(join(programs[at] ?? "", "deploy"), text, { mode: 0o755 });
  await put(1, "#!/bin/sh\necho deployed\n");
  const service = await startService({ env: { PATH: [...programs, process.env.PATH].join(":") } });
  const call = { tool: "bash", input: { command: "deploy production" } };
  for (const change of [() => put(1, "#!/bin/sh\necho replaced\n"), () => put(0, "#!/bin/sh\necho replaced\n")]) {
    const { first, again } = await drift(service, call, change);
    expect(again).toMatchObject({ patterns: first.patterns });
    expect(again?.digest).not.toBe(first.digest);
  }
});

test("the environment: a service with another PATH asks again where that finds another program", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-programs-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  for (const name of ["one", "other"]) {
    await mkdir(join(folder, name));
    await writeFile(join(folder, name, "deploy"), `#!/bin/sh\necho ${name}\n`, { mode: 0o755 });
  }
  const env = { PATH: `${join(folder, "one")}:${process.env.PATH}` };
  const service = await startService({ env });
  const { first, again } = await drift(service, { tool: "bash", input: { command: "deploy" } }, async () => {
    env.PATH = `${join(folder, "other")}:${process.env.PATH}`;
    await restart(service);
  });
  expect(again?.digest).not.toBe(first.digest);
});

test("what hooks add is fixed with the first plan: what runs is what was approved, whatever they would say by then", async () => {
  const service = await startService();
  await service.stop();
  const plugin = (word: string) =>
    writeFile(
      join(service.config, "../guard.ts"),
      `export const Guard = async () => ({
  "tool.execute.before": async (input, output) => { output.args.command += " ${word}"; },
  "shell.env": async (input, output) => { output.env.GREETING = "${word}"; },
});\n`,
    );
  await plugin("hello");
  await service.configure('plugin = ["guard.ts"]\n');
  await service.start();
  const call = { tool: "bash", input: { command: 'echo "$GREETING"' } };
  const { first, again, sessionId } = await drift(service, call, async () => {
    await plugin("bye");
    await restart(service);
  });
  expect(first.patterns).toEqual(['echo "$GREETING" hello']);
  expect(again).toBeUndefined();
  const part = await read(connect(service, "caller").tools.executeTool({ sessionId, callId: "c1", ...call })).end();
  expect(part.state).toMatchObject({ case: "completed", value: { output: "hello hello\n" } });
});

test("the content of a file that will be changed: what was shown is not what would happen, so nothing does", async () => {
  const service = await prepare();
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  const path = join(service.workspace, "notes.txt");
  await writeFile(path, "one\n");
  await read(
    agent.tools.executeTool({ sessionId, callId: "r1", tool: "read", input: { filePath: "notes.txt" } }),
  ).end();
  const input = { filePath: "notes.txt", oldString: "one", newString: "two" };
  const stream = read(agent.tools.executeTool({ sessionId, callId: "c1", tool: "edit", input }));
  const { id, digest } = await stream.until("permissionAsked");
  await writeFile(path, "one, and more\n");
  const answer = { sessionId, permissionId: id, reply: Reply.ONCE, expectedDigest: digest };
  await connect(service, "approver").permissions.respondToPermission(answer);
  const { state } = await stream.end();
  expect(state).toMatchObject({ case: "error", value: { effects: ToolEffects.NONE } });
  expect(await readFile(path, "utf8")).toBe("one, and more\n");
});

test("the configuration", async () => {
  const service = await prepare();
  const { first, again } = await drift(service, command, async () => {
    await service.configure('[permission]\nwebfetch = "deny"\n');
    await restart(service);
  });
  expect(again?.digest).not.toBe(first.digest);
});
