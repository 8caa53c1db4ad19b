import { execFileSync } from "node:child_process";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";
import { connect } from "./clients.ts";
import { startService } from "./service.ts";

const settings = '[permission]\nedit = "allow"\nbash = "allow"\n';

/** Settings, each with the file of the workspace that git runs or reads because of it. */
const named = [
  ["core.hooksPath", "tools/hooks", "tools/hooks/pre-commit"],
  ["core.fsmonitor", "./watch.sh", "watch.sh"],
  ["core.attributesFile", "conf/attributes", "conf/attributes"],
  ["include.path", "../conf/more.ini", "conf/more.ini"],
  ["includeIf.gitdir:/nowhere/.path", "../conf/other.ini", "conf/other.ini"],
  ["filter.tidy.clean", "sh lib/clean.sh %f", "lib/clean.sh"],
  ["diff.external", '"lib/diff.sh" -x', "lib/diff.sh"],
  ["diff.doc.textconv", "python3 -u lib/text.py", "lib/text.py"],
  ["merge.ours.driver", "lib/merge %O %A %B", "lib/merge"],
  ["alias.go", "!cd sub; time node lib/go.js", "lib/go.js"],
  ["credential.https://example.com.helper", '!f() { sh "$PWD/lib/secret.sh"; }; f', "lib/secret.sh"],
  ["gpg.ssh.program", "lib/sign", "lib/sign"],
  ["core.sshCommand", "lib/ssh -v", "lib/ssh"],
] as const;

test("files that settings of git name ask for each change by a tool or command, also those of included settings", async () => {
  const service = await startService({ settings });
  const git = (...args: string[]) => execFileSync("git", ["-C", service.workspace, ...args]);
  git("init", "-q");
  for (const [name, value] of named) git("config", name, value);
  const folders = named.map(([, , path]) => dirname(join(service.workspace, path)));
  for (const folder of folders) await mkdir(folder, { recursive: true });
  await writeFile(join(service.workspace, "conf/more.ini"), '[diff "x"]\n\tcommand = lib/deep.sh # late\n');
  await writeFile(join(service.workspace, "lib/merge"), "exit 0\n");
  const { newSession, tools } = connect(service, "caller");
  const sessionId = await newSession();
  let count = 0;
  /** Returns "asked", or the state in which the call ends. */
  const run = async (tool: string, input: object): Promise<string | undefined> => {
    const call = { sessionId, callId: `c${count++}`, tool, input: { ...input } };
    for await (const { event } of tools.executeTool(call)) {
      if (event?.event.case === "permissionAsked") return "asked";
      const { case: state } = event?.event.case === "part" ? event.event.value.state : {};
      if (state === "completed" || state === "error") return state;
    }
    return undefined;
  };
  const write = (path: string) => run("write", { filePath: join(service.workspace, path), content: "X" });
  const files = [...named.map(([, , path]) => path), "lib/deep.sh"];
  for (const path of ["conf/more.ini", "lib/merge"]) await run("read", { filePath: join(service.workspace, path) });
  const states = await Promise.all(files.map(async (path) => [path, await write(path)]));
  expect(states).toEqual(files.map((path) => [path, "asked"]));
  expect([await write("lib/other.sh"), await write("hooks/pre-commit")]).toEqual(["completed", "completed"]);

  // A command that names the file asks; one whose text does not is refused by the sandbox.
  expect(await run("bash", { command: "echo X > lib/merge" })).toBe("asked");
  expect(await run("bash", { command: "mv lib moved" })).toBe("asked");
  await run("bash", { command: "python3 -c \"open('lib/' + 'merge', 'w').write('X')\"" });
  expect(await readFile(join(service.workspace, "lib/merge"), "utf8")).toBe("exit 0\n");
  await run("bash", { command: "python3 -c \"open('tools/hooks/' + 'post-checkout', 'w').write('X')\"" });
  await expect(readFile(join(service.workspace, "tools/hooks/post-checkout"))).rejects.toThrow("ENOENT");

  // So do those of submodules and of linked work trees below.
  const other = join(service.workspace, "../other");
  const inOther = (...args: string[]) => execFileSync("git", ["-C", other, ...args]);
  const author = ["-c", "user.name=a", "-c", "user.email=a@b"];
  await mkdir(other);
  inOther("init", "-q");
  inOther(...author, "commit", "-q", "--allow-empty", "-m", "one");
  git("-c", "protocol.file.allow=always", "submodule", "add", "-q", other, "deep/sub");
  git("-C", "deep/sub", "config", "core.fsmonitor", "bin/watch");
  git(...author, "commit", "-q", "-m", "one");
  git("worktree", "add", "-q", "trees/one");
  expect(await Promise.all(["deep/sub/bin/watch", "trees/one/watch.sh"].map(write))).toEqual(["asked", "asked"]);
  git("worktree", "add", "-q", "trees/two");
  expect(await write("trees/two/watch.sh")).toBe("asked");
  expect(await write("trees/two/watch.txt")).toBe("completed");

  // A setting that is gone protects nothing any more.
  await rm(join(service.workspace, ".git/config"));
  git("init", "-q");
  expect(await write("tools/hooks/pre-push")).toBe("completed");
});

test("a list of submodules without end does not hold up the calls of its repository", async () => {
  const service = await startService({ settings });
  execFileSync("git", ["-C", service.workspace, "init", "-q"]);
  const paths = Array.from({ length: 149_000 }, (_, i) => `path=${i % 10}\n`).join("");
  await writeFile(join(service.workspace, ".gitmodules"), `[submodule "a"]\n${paths}`);
  const { newSession, tools } = connect(service, "caller");
  const sessionId = await newSession();
  const { part } = await tools.callTool({ sessionId, tool: "bash", input: { command: "echo ran" }, waitMs: 60_000 });
  expect(part?.state.value).toMatchObject({ output: "ran\n" });
});
