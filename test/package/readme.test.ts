import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { startProgramAtTerminal } from "../cli/toolgate.ts";

/** Each command of the README runs from a folder that is not the checkout, as it stands there. */
const readme = await readFile(resolve(import.meta.dirname, "../../README.md"), "utf8");
const shown = [...readme.matchAll(/^(npx toolgate .*?)(?: +#.*)?$|`(npx toolgate [^`]+)`/gm)].map(
  ([, line, inline]) => line ?? inline ?? "",
);
const toml = /^```toml\n([\s\S]*?)^```/m.exec(readme)?.[1] ?? "";
const { folder } = inject("installed");

let home: string;
let service: ChildProcess;
let url = "";
let environment: Record<string, string> = {};
let approver = "";
const ran = new Set<string>();

beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), "toolgate-home-"));
  await mkdir(join(home, ".config/toolgate"), { recursive: true });
  await writeFile(join(folder, "toolgate.toml"), toml);
});
afterAll(async () => {
  const ended = once(service, "exit");
  // npx does not pass the signal on to the service.
  if (service.exitCode === null && service.pid !== undefined) process.kill(-service.pid, "SIGTERM");
  await ended;
  await rm(home, { recursive: true, force: true });
});

/** Starts a command of the README at a terminal; `at` replaces a placeholder. */
function start(line: string, at: Record<string, string> = {}) {
  ran.add(line);
  const command = Object.entries(at).reduce((text, [name, value]) => text.replace(name, value), line);
  return startProgramAtTerminal(["sh", "-c", `cd ${folder} && exec ${command}`], {
    HOME: home,
    ...environment,
  });
}

async function finish(line: string, at: Record<string, string> = {}): Promise<string> {
  const { code, stdout } = await start(line, at).finished;
  expect(stdout, `exit code ${code}`).toSatisfy(() => code === 0);
  return stdout;
}

test("npx toolgate demo leaves a request to a person", async () => {
  const { child, sees, finished } = start("npx toolgate demo");
  // The README has the checkout's name for it.
  ran.delete("npx toolgate demo");
  await sees("/#code=", "Enter lets the demo approve");
  child.stdin?.write("\n");
  expect(await finished).toMatchObject({ code: 0 });
});

test("npx toolgate serve starts a service in which a token can be created", async () => {
  ran.add("npx toolgate serve");
  service = spawn("npx", ["toolgate", "serve"], {
    cwd: folder,
    detached: true,
    env: { PATH: process.env.PATH, HOME: home, TOOLGATE_LISTEN: "127.0.0.1:0" },
    stdio: ["ignore", "pipe", "pipe"],
  });
  for await (const line of createInterface({ input: service.stderr ?? process.stdin })) {
    url = /^Toolgate .* is at (http:\S+)/.exec(line)?.[1] ?? "";
    if (url !== "") break;
  }
  service.stderr?.resume();
  approver = /tg_[\w-]+/.exec(await finish("npx toolgate token create --role approver"))?.[0] ?? "";
});

test("a terminal signs in with a code, and then approves", async () => {
  environment = { TOOLGATE_URL: url, TOOLGATE_TOKEN: approver };
  const program = join(folder, "node_modules/.bin/toolgate");
  const code = await startProgramAtTerminal([program, "login", "--new-code"], { HOME: home, ...environment }).finished;
  environment = { TOOLGATE_URL: url };
  const [, found = ""] = /#code=([\w-]+)/.exec(code.stdout) ?? [];
  expect(await finish("npx toolgate login CODE", { CODE: found })).toContain("signed in");
});

test("a call waits, the inbox shows it, and its answer ends it", async () => {
  const call = start(`npx toolgate call bash '{"command": "git status"}'`);
  await call.sees("git status");
  const inbox = start("npx toolgate inbox");
  await inbox.sees("git status");
  inbox.child.stdin?.write("q");
  expect(await inbox.finished).toMatchObject({ code: 0 });
  const program = join(folder, "node_modules/.bin/toolgate");
  const asks = await startProgramAtTerminal([program, "asks", "--json"], { HOME: home, ...environment }).finished;
  const { sessionId = "" } = JSON.parse(asks.stdout.split("\n")[0] ?? "{}");
  await startProgramAtTerminal([program, "reject", sessionId], { HOME: home, ...environment }).finished;
  expect((await call.finished).stdout).toContain("rejected");
});

test("rules are checked and explained, and the audit is verified", async () => {
  expect(await finish("npx toolgate check-config toolgate.toml")).toContain("toolgate.toml");
  expect(await finish('npx toolgate explain bash "git push"')).toContain("ask");
  expect(await finish("npx toolgate audit verify")).toContain("unchanged");
});

test("agents are connected, checked and disconnected", async () => {
  for (const kind of ["claude", "opencode", "mcp"]) {
    const { child, sees, finished } = start(`npx toolgate connect ${kind}`);
    await sees("[y/N]");
    child.stdin?.write("y\n");
    expect(await finished).toMatchObject({ code: 0 });
  }
  const check = await start("npx toolgate connect --check").finished;
  expect(check.stdout).toContain("advisory");
  await finish("npx toolgate disconnect claude");
});

test("no other command is in the README", () => {
  expect(new Set(shown)).toEqual(ran);
});
