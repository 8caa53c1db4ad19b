import { mkdtemp, readdir, readFile, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../../src/client/connect.ts";
import { locateProgram } from "../../src/core/locate-program.ts";
import { isBroad } from "../breadth.ts";
import { main, programEntry } from "../main.ts";
import { startProgramAtTerminal } from "./toolgate.ts";

const root = resolve(import.meta.dirname, "../..");

/** Makes a directory for the temporary files of a demo, and checks after the test that neither they nor a process is left. */
async function watchLeftovers(): Promise<{ TMPDIR: string }> {
  const TMPDIR = await mkdtemp(join(tmpdir(), "demo-"));
  onTestFinished(async () => {
    expect(await processesWith(`TMPDIR=${TMPDIR}`)).toEqual([]);
    const cacheOfNode = "node-compile-cache";
    expect((await readdir(TMPDIR)).filter((name) => name !== cacheOfNode)).toEqual([]);
    await rm(TMPDIR, { recursive: true });
  });
  return { TMPDIR };
}

/** Command lines of the processes that have an entry in their environment. */
async function processesWith(entry: string): Promise<string[]> {
  const textOf = (pid: string, file: string) => readFile(`/proc/${pid}/${file}`, "utf8").catch(() => "");
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const found: string[] = [];
  for (const pid of pids)
    if ((await textOf(pid, "environ")).split("\0").includes(entry)) found.push(await textOf(pid, "cmdline"));
  return found;
}

/** A PATH that finds what a service needs, and of Redis only what is given. */
async function pathWithout(redis?: string): Promise<string> {
  // Commands do not see directories below /tmp.
  const folder = await mkdtemp(join(root, "node_modules/.cache/programs-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  for (const name of ["bash", "bwrap", "mkfifo", "sh"]) {
    const program = locateProgram(name, process.env.PATH);
    if (program !== undefined) await symlink(program, join(folder, name));
  }
  if (redis !== undefined) await symlink(redis, join(folder, "redis-server"));
  return folder;
}

test("two replicas keep each promise, as the picture shows it", async () => {
  const { code, stdout, stderr } = await main(["demo"], await watchLeftovers());
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  const picture = await readFile(join(root, "docs/images/demo.svg"), "utf8");
  const drawn = withoutSpaces(picture.replaceAll(/<[^>]+>/g, ""));
  const missing = stdout.split("\n").filter((line) => !drawn.includes(withoutSpaces(line)));
  expect(missing, "draw it with `npm run tour`").toEqual([]);
});

function withoutSpaces(text: string): string {
  return text.replaceAll(/\s/g, "");
}

test("without Redis one service on SQLite keeps each promise across a restart, and the demo says so", async () => {
  const { code, stdout, stderr } = await main(["demo"], { ...(await watchLeftovers()), PATH: await pathWithout() });
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  expect(stdout).toContain("One Toolgate on SQLite");
  expect(stdout.match(/^✓/gm)).toHaveLength(7);
});

test.runIf(isBroad)("a Redis that does not start is named, with its error and the next step", async () => {
  const PATH = await pathWithout("/bin/false");
  const { code, stderr } = await main(["demo"], { ...(await watchLeftovers()), PATH });
  expect(code).toBe(1);
  expect(stderr).toMatch(/error: .*redis-server did not start: .*\n next: .*\n/);
});

test.runIf(isBroad)(
  "at a terminal a person signs in with the link and rejects: nothing runs, and the demo says so",
  async () => {
    const { finished, sees, link } = await startWithPerson();
    const [url = "", code = ""] = link.split("/#code=");
    const newcomer = connect({ url });
    const { token } = await newcomer.credentials.signIn({ code });
    const person = connect({ url, token });
    onTestFinished(() => {
      newcomer.close();
      person.close();
    });
    const { permissions } = await person.permissions.listPermissions({});
    for (const { id, sessionId } of permissions)
      await person.permissions.respondToPermission({ sessionId, permissionId: id, reply: PermissionReply.REJECT });
    await sees("rejected by", "What was not approved does not run", "0 lines", "A retry runs nothing", "is broken");
    expect((await finished).code).toBe(0);
  },
);

test.runIf(isBroad)("at a terminal Enter lets the demo approve", async () => {
  const { child, finished } = await startWithPerson();
  child.stdin?.write("\n");
  const { code, stdout } = await finished;
  expect(code).toBe(0);
  expect(stdout).toContain("approved once by person");
});

test.runIf(isBroad)("at a terminal Ctrl-C ends it, and what it started", async () => {
  const { child, finished } = await startWithPerson();
  child.stdin?.write("\x03");
  expect((await finished).code).toBe(4);
});

/** Starts the demo at a terminal and waits until it waits for the person. */
async function startWithPerson() {
  // Without `exec` the shell of the terminal gets Ctrl-C as well, and the exit code is its own.
  const program = ["exec", process.execPath, programEntry(), "demo"];
  const demo = startProgramAtTerminal(program, await watchLeftovers());
  onTestFinished(() => void demo.child.kill("SIGKILL"));
  let printed = "";
  demo.child.stdout?.on("data", (piece: Buffer) => {
    printed += piece;
  });
  await demo.sees("It is your turn", "Enter lets the demo approve");
  return { ...demo, link: /http:\S+#code=[\w-]+/.exec(printed)?.[0] ?? "" };
}
