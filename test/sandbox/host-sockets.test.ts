import { mkdirSync, readdirSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, judgeBy, openTestWorkspace, type RunOptions, type TestWorkspace } from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";

const supervisor = createSupervisor({ replicaId: `sockets-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
let site: TestWorkspace;
beforeAll(async () => {
  site = await openTestWorkspace();
  site.judge = judgeBy({ read: { "secrets/*": "deny" } });
  for (const name of ["sub", "secrets"]) mkdirSync(join(site.directory, name));
  mkdirSync(join(site.outside, "named"));
});
afterAll(async () => {
  await site.remove();
  await supervisor.close();
  await pipes.close();
});

/** Serves at a socket file, or a name without one (`@NAME`), outside of every sandbox. */
async function serve(address: string): Promise<string> {
  const server = createServer((connection) => connection.end("of the host"));
  await new Promise<void>((resolve) => server.listen(address.replace(/^@/, "\0"), resolve));
  onTestFinished(() => void server.close());
  return address;
}

/** Runs a command that connects to addresses, and prints what it reads from each. */
async function connectTo(addresses: readonly string[], settings: object = {}, options: RunOptions = {}) {
  const wanted = { profile: "workspace-write", network: "none", unixSockets: true, ...settings } as const;
  const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [join(site.outside, "named")], hidden: [] });
  onTestFinished(sandbox.close);
  const program = `import socket
for address in ${JSON.stringify(addresses)}:
    try:
        s = socket.socket(socket.AF_UNIX)
        s.connect(address.replace("@", chr(0)))
        print(s.recv(99).decode())
    except OSError as error: print(error.strerror)`;
  const { written } = await callTool(
    site,
    createBash({ supervisor, sandbox, pipes }),
    { command: `python3 -c '${program}'` },
    options,
  );
  return written.trimEnd().split("\n");
}

describe("a command that may open sockets of the family UNIX", () => {
  test("reaches no server of the host by a file in the workspace or an allowed directory", async () => {
    const files = ["socket", "sub/socket"].map((name) => join(site.directory, name));
    const sockets = await Promise.all([...files, join(site.outside, "socket")].map(serve));
    const before = readdirSync(site.directory);
    expect(await connectTo(sockets, {}, { outside: [site.outside] })).toEqual(sockets.map(() => "Connection refused"));
    expect(readdirSync(site.directory)).toEqual(before);
    expect(await connectTo(sockets, { profile: "off" }), "control").toEqual(sockets.map(() => "of the host"));
  });

  test("is started where a directory with a socket is hidden from it", async () => {
    expect(await connectTo([await serve(join(site.directory, "secrets/socket"))])).toEqual([
      "No such file or directory",
    ]);
  });

  test("reaches a server in a directory that the configuration names as writable", async () => {
    expect(await connectTo([await serve(join(site.outside, "named/socket"))])).toEqual(["of the host"]);
  });

  test("reaches no abstract socket of the host unless its network is open", async () => {
    const name = await serve(`@toolgate-test-${process.pid}`);
    expect(await connectTo([name])).toEqual(["Connection refused"]);
    expect(await connectTo([name], { network: "open" }), "control").toEqual(["of the host"]);
  });

  test("reaches a server that it runs itself, by a file in the workspace", async () => {
    const wanted = { profile: "workspace-write", network: "none", unixSockets: true } as const;
    const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [] });
    onTestFinished(sandbox.close);
    const command = `python3 -c 'import socket
s = socket.socket(socket.AF_UNIX); s.bind("own"); s.listen()
c = socket.socket(socket.AF_UNIX); c.connect("own"); print("connected")'`;
    expect((await callTool(site, createBash({ supervisor, sandbox, pipes }), { command })).written).toBe("connected\n");
  });
});
