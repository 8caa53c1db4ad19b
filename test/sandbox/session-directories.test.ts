import { mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { createSessionDirectories } from "../../src/sandbox/session-directories.ts";
import { callTool, openTestWorkspace, type TestWorkspace } from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";

const supervisor = createSupervisor({ replicaId: `directories-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
const temporary = mkdtempSync(join(tmpdir(), "toolgate-test-"));
const wanted = { profile: "workspace-write", network: "none", unixSockets: true } as const;
const readOnly = { profile: "read-only", network: "none" } as const;
const agents = new Map([["plan", readOnly]]);
const sandbox = await openSandbox({ wanted, agents, writable: [], hidden: [], temporary });
let site: TestWorkspace;
beforeAll(async () => {
  site = await openTestWorkspace();
});
afterAll(async () => {
  await site.remove();
  await supervisor.close();
  await pipes.close();
  sandbox.close();
  rmSync(temporary, { recursive: true });
});

/** Runs a command in a session, as an agent. */
async function run(
  command: string,
  { session = "ses_one", agent = "build", outside = [] as string[] } = {},
): Promise<string> {
  const confine: typeof sandbox.confine = (argv, place) => sandbox.confine(argv, { ...place, session, agent });
  const bash = createBash({ supervisor, pipes, sandbox: { ...sandbox, confine } });
  return (await callTool(site, bash, { command }, { outside })).written;
}

describe("the commands of a session tree", () => {
  test("share their temporary files, and no other session sees them", async () => {
    expect(await run("echo one > /tmp/file; cat /var/tmp/file")).toBe("one\n");
    expect(await run("cat /tmp/file")).toBe("one\n");
    expect(await run("cat /tmp/file", { session: "ses_two" })).toContain("No such file");
  });

  test("see neither the temporary files nor the sockets of the machine", async () => {
    const file = join(mkdtempSync(join(tmpdir(), "toolgate-host-")), "file");
    onTestFinished(() => rmSync(join(file, ".."), { recursive: true }));
    writeFileSync(file, "of the host");
    const socket = join(file, "../socket");
    const server = createServer((connection) => connection.end("of the host"));
    await new Promise<void>((resolve) => server.listen(socket, resolve));
    onTestFinished(() => void server.close());
    const connect = `python3 -c "import socket; s = socket.socket(socket.AF_UNIX); s.connect('${socket}'); print(s.recv(99))"`;
    const said = await run(`cat ${file}; ${connect}; ls -A /run`);
    expect(said).not.toContain("of the host");
    expect(said).toMatch(/No such file or directory\n$/);
  });

  test("cannot move or replace the directory below /tmp in which their workspace lies", async () => {
    const holder = dirname(site.directory);
    expect(await run(`mv ${holder} ${holder}2; rmdir ${holder}; ln -sfT /etc ${holder}; ls ${site.directory}`)).toMatch(
      /(busy[\s\S]*){2}cannot overwrite directory\n$/,
    );
  });

  test("cannot lead the mounts of later ones to another place by a link in /tmp", async () => {
    const [holder, target] = ["holder", "target"].map((name) => mkdtempSync(join(tmpdir(), `toolgate-${name}-`)));
    onTestFinished(() => {
      for (const path of [holder, target]) rmSync(path ?? "", { recursive: true });
    });
    const allowed = join(holder ?? "", "allowed");
    mkdirSync(allowed);
    // While bubblewrap makes the mounts, this leads to the disk of the host.
    expect(await run(`ln -s /oldroot${target} ${holder}; echo linked`)).toBe("linked\n");
    await run("true", { outside: [allowed] });
    expect(readdirSync(target ?? "")).toEqual([]);
  });

  test("of an agent that may only read get empty temporary directories each time", async () => {
    expect(await run("echo one > /tmp/other; cat /tmp/other", { agent: "plan" })).toBe("one\n");
    expect(await run("cat /tmp/other", { agent: "plan" })).toContain("No such file");
  });
});

test("files of sessions that are gone, or idle for a day, are removed; others stay", async () => {
  for (const session of ["ses_gone", "ses_idle", "ses_kept"]) await run("touch /tmp/file", { session });
  const nameOf = (session: string) => Buffer.from(session).toString("base64url");
  utimesSync(join(temporary, nameOf("ses_idle")), new Date(0), new Date(0));
  // Another process after a crash of the first one.
  await createSessionDirectories(temporary).sweep(async (session) => session !== "ses_gone");
  const left = readdirSync(temporary);
  expect(left).toContain(nameOf("ses_kept"));
  expect(left).not.toContain(nameOf("ses_gone"));
  expect(left).not.toContain(nameOf("ses_idle"));
});
