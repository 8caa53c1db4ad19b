import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chmod, chown, mkdir, mkdtemp, readFile, realpath, rm, stat } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { expect, onTestFinished, test } from "vitest";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { findPeerProof } from "../../src/client/find-peer-proof.ts";
import { openVerifiedSocket } from "../../src/client/verified-socket.ts";
import { toolgate } from "../cli/toolgate.ts";
import { main } from "../main.ts";
import { clientOf } from "./clients.ts";

const serviceUid = 61_011;

async function newDirectory(): Promise<string> {
  const directory = await realpath(await mkdtemp(join(tmpdir(), "toolgate-install-")));
  onTestFinished(() => rm(directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 }));
  await chmod(directory, 0o755);
  return directory;
}

/** Runs the product's `toolgate install` into a directory. */
async function install(...names: string[]) {
  const root = await newDirectory();
  const workspaces = names.map((name) => join(root, name));
  for (const workspace of workspaces) await mkdir(workspace, { recursive: true });
  const flags = workspaces.flatMap((workspace) => ["--workspace", workspace]);
  const done = await main(["install", "--root", root, ...flags], { HOME: root });
  const paths = {
    unit: join(root, "etc/systemd/system/toolgate.service"),
    socket: join(root, "etc/systemd/system/toolgate.socket"),
    config: join(root, "etc/toolgate/toolgate.toml"),
  };
  return { root, workspaces, done, ...paths, data: join(root, "var/lib/toolgate") };
}

test("install writes a unit that systemd accepts, a configuration and a data directory", async () => {
  const { unit, socket, config, data, workspaces, done } = await install("home/ann/shop", "srv/data shop");
  expect(done).toMatchObject({ code: 0, stderr: "" });
  const access = `setfacl -R -m u:toolgate:rwX,d:u:toolgate:rwX,d:u:${process.getuid?.()}:rwX`;
  expect(done.stdout).toContain(`  ${access} ${workspaces[0]}\n`);
  expect(done.stdout).toContain(`  ${access} '${workspaces[1]}'\n`);
  expect(done.stdout).toContain("runuser -u toolgate -- toolgate people invite --data /var/lib/toolgate");
  expect((await stat(data)).mode & 0o777).toBe(0o700);
  expect((await stat(config)).mode & 0o777).toBe(0o640);
  expect(await readFile(config, "utf8")).toContain("require_other_user = true");
  const { error, status, stderr } = spawnSync("systemd-analyze", ["verify", "--man=no", unit, socket], {
    encoding: "utf8",
  });
  if (error !== undefined) throw new Error("the test needs systemd-analyze; install it: apt-get install systemd");
  // The user does not exist on the machine of the test.
  const problems = stderr.split("\n").filter((line) => line.includes("toolgate") && !/user|group/i.test(line));
  expect({ status, problems }).toEqual({ status: 0, problems: [] });
});

/** Holds a port as systemd does, and starts a program with it for each line on stdin; prints the port, then the ID of each process. */
const holder = `
import os, socket, sys
held = socket.socket()
held.bind(("127.0.0.1", 0))
held.listen(64)
port = held.getsockname()[1]
print(port, flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(held.fileno(), 3)
        os.set_inheritable(3, True)
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        os.dup2(2, 1)
        os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), TOOLGATE_LISTEN="127.0.0.1:%d" % (port + int(line)))
        os.setgroups([]); os.setgid(${serviceUid}); os.setuid(${serviceUid})
        os.execvp(sys.argv[1], sys.argv[1:])
    print(child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
`;

test("with the socket unit the port stays taken while the service is down, and requests wait for it", async () => {
  const { unit, config, data } = await install("srv/shop");
  const [, command = ""] = /^ExecStart=(.+)$/m.exec(await readFile(unit, "utf8")) ?? [];
  await chown(data, serviceUid, serviceUid);
  await chown(config, 0, serviceUid);
  const words = command.replace("/etc/toolgate/toolgate.toml", config).split(" ");
  const env = { PATH: process.env.PATH, HOME: data, TOOLGATE_DATA: data };
  const child = spawn("python3", ["-c", holder, ...words], { env, stdio: ["pipe", "pipe", "pipe"] });
  const printed = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => (await printed.next()).value ?? "";
  let log = "";
  child.stderr.on("data", (piece: Buffer) => {
    log += piece.toString();
  });
  let pid = 0;
  onTestFinished(() => {
    child.kill("SIGKILL");
    if (pid > 0) process.kill(pid, "SIGKILL");
  });
  const port = Number(await next());
  const url = `http://127.0.0.1:${port}`;
  const start = async (offset = 0) => {
    child.stdin.write(`${offset}\n`);
    pid = Number(await next());
  };
  const health = async () => (await fetch(`${url}/healthz`)).status;

  await start();
  expect(await health()).toBe(200);
  const proof = await findPeerProof(url, {});
  expect(proof).toEqual({ uid: serviceUid });
  (await openVerifiedSocket(url, proof, {})).destroy();
  await expect(openVerifiedSocket(url, { uid: serviceUid + 1 }, {})).rejects.toThrow("is not the recorded service");

  process.kill(pid, "SIGKILL");
  expect(await next()).toBe("ended");
  const [taken] = await once(createServer().listen(port, "127.0.0.1"), "error", {
    signal: AbortSignal.timeout(10_000),
  }).catch((error) => [error]);
  expect(taken).toMatchObject({ code: "EADDRINUSE" });
  await expect(openVerifiedSocket(url, proof, {})).rejects.toThrow("whose port systemd holds");
  const waiting = health();
  await start();
  expect(await waiting).toBe(200);

  process.kill(pid, "SIGTERM");
  expect(await next()).toBe("ended");
  await start(1);
  expect(await next()).toBe("ended");
  pid = 0;
  expect(log).toContain(`the socket unit listens on port ${port}, but`);
});

test("the command of the unit serves as another user, and requires another user for answers", async () => {
  const { unit, config, data, workspaces } = await install("srv/shop");
  const [, command = ""] = /^ExecStart=(.+)$/m.exec(await readFile(unit, "utf8")) ?? [];
  await chown(data, serviceUid, serviceUid);
  await chown(config, 0, serviceUid);
  const words = command.replace("/etc/toolgate/toolgate.toml", config).split(" ");
  const user = ["--reuid", String(serviceUid), "--regid", String(serviceUid), "--clear-groups"];
  const env = { PATH: process.env.PATH, HOME: data, TOOLGATE_DATA: data, TOOLGATE_LISTEN: "127.0.0.1:0" };
  const child = spawn("setpriv", [...user, ...words, "--json"], { env, stdio: ["ignore", "pipe", "ignore"] });
  const exited = once(child, "exit");
  onTestFinished(async () => {
    child.kill("SIGTERM");
    await exited;
  });
  const started = once(createInterface({ input: child.stdout }), "line");
  const [line] = await Promise.race([
    started,
    exited.then(([code]) => Promise.reject(new Error(`it exited: ${code}`))),
  ]);
  const { url } = JSON.parse(line);
  const caller = (await readFile(join(data, "tokens/caller"), "utf8")).trim();
  const tools = clientOf(ToolService, url, caller);
  expect((await tools.getServerInfo({})).workspaces).toEqual(["default"]);
  const { part } = await tools.callTool({ tool: "read", input: { filePath: workspaces[0] ?? "" }, waitMs: 10_000 });
  expect(part?.callerUid).toBe(process.getuid?.());
});

test("install refuses what would not work, and leaves an existing configuration alone", async () => {
  const { root, workspaces, config } = await install("srv/shop");
  const before = await readFile(config, "utf8");
  const [workspace = ""] = workspaces;
  const again = await main(["install", "--root", root, "--workspace", workspace], { HOME: root });
  expect(again.stdout).toContain(`${config} exists, and stays as it is`);
  expect(await readFile(config, "utf8")).toBe(before);
  const twins = await main(["install", "--root", root, ...[1, 2, 3].flatMap(() => ["--workspace", workspace])], {
    HOME: root,
  });
  expect(twins).toMatchObject({ code: 2, stderr: expect.stringContaining("two workspaces would have the name shop") });
  expect(await toolgate(["install", "--root", root, "--workspace", join(root, "none")])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining("is not a directory"),
  });
});
