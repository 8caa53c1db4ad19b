import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { copyFile, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { expect, inject, onTestFinished, test } from "vitest";
import { PermissionReply, type PermissionRequest, type ToolPart } from "../../src/client/client.ts";
import { connect } from "../../src/client/connect.ts";
import { findToken } from "../../src/client/find-token.ts";

const root = resolve(import.meta.dirname, "../..");
const run = promisify(execFile);
const { folder, npmSaid, packed } = inject("installed");
const toolgate = () => join(folder, "node_modules/toolgate/bin/toolgate.js");
const shell = (...args: string[]) => run(process.execPath, args, { cwd: folder });

test("the package has the program and nothing of its tests, benchmarks or docs", () => {
  expect(packed).toEqual(
    expect.arrayContaining([
      "LICENSE",
      "README.md",
      "bin/toolgate.js",
      "dist/analysis-worker.js",
      "dist/THIRD_PARTY",
      "dist/completion/toolgate.bash",
      "dist/console/index.html",
      "dist/hook.cjs",
      "dist/html-worker.js",
      "dist/jsonschema/toolState.schema.json",
      "dist/main.js",
      "dist/plan-thread.js",
      "dist/redis/open_call.lua",
      "dist/supervisor-thread.js",
      "dist/supervisor.sh",
    ]),
  );
  expect(packed.filter((path) => !/^(bin|dist)\/|^(LICENSE|README\.md|package\.json)$/.test(path))).toEqual([]);
});

test("it installs four packages at most, without a warning", async () => {
  const names = await readdir(join(folder, "node_modules"));
  const scoped = await readdir(join(folder, "node_modules/@vscode"));
  expect([...names.filter((name) => /^[a-z]/.test(name)), ...scoped].length).toBeLessThanOrEqual(4);
  expect(npmSaid).not.toMatch(/EBADENGINE|install-scripts|deprecated/);
});

test("the licences of inlined packages are in it", async () => {
  const text = await readFile(join(folder, "node_modules/toolgate/dist/THIRD_PARTY"), "utf8");
  for (const name of ["zod", "commander", "ioredis", "preact", "turndown"])
    expect(text).toMatch(new RegExp(`^${name} \\d+\\.`, "m"));
});

test("npx finds the program", async () => {
  const { stdout } = await run("npx", ["--no-install", "toolgate", "--version"], { cwd: folder });
  expect(stdout).toBe("0.1.0\n");
});

test("the demo runs", async () => {
  const { stdout } = await shell(toolgate(), "demo");
  expect(stdout).toContain("npx toolgate serve");
});

test("the completion scripts are printed", async () => {
  const { stdout } = await shell(toolgate(), "completion", "bash");
  expect(stdout).toContain("complete -F _toolgate toolgate");
});

test("a program uses each export, and its types fit", async () => {
  await copyFile(join(import.meta.dirname, "consumer.ts"), join(folder, "consumer.ts"));
  const compiler = join(root, "node_modules/typescript/bin/tsc");
  const types = ["--typeRoots", join(root, "node_modules/@types"), "--types", "node"];
  await shell(
    compiler,
    "--noEmit",
    "--strict",
    "--target",
    "es2024",
    "--lib",
    "esnext,dom",
    "--module",
    "nodenext",
    "--resolveJsonModule",
    ...types,
    "consumer.ts",
  );
  const { stdout } = await shell("consumer.ts");
  expect(JSON.parse(stdout)).toEqual({ tested: "3", called: "4", worker: "refused", answer: "once" });
});

test("a tool file imports toolgate/plugin and zod", async () => {
  await writeFile(join(folder, "toolgate.toml"), `[permission]\nshout = "allow"\n`);
  await writeFile(
    join(folder, "work/.opencode/tool/shout.ts"),
    `import { tool } from "toolgate/plugin";
     import { z } from "zod";
     const text: z.ZodString = z.string();
     export default tool({ description: "Shout.", args: { text }, execute: async ({ text }) => text.toUpperCase() });`,
  );
  const place = ["--config", join(folder, "toolgate.toml")];
  const env = { ...process.env, XDG_DATA_HOME: join(folder, "share") };
  await mkdir(join(folder, "share/toolgate"), { recursive: true });
  await run(process.execPath, [toolgate(), "trust", "work", ...place], { cwd: folder, env });
  const shout = ["run", "shout", '{"text": "hi"}', "--workspace", "work", ...place];
  const { stdout } = await run(process.execPath, [toolgate(), ...shout], { cwd: folder, env });
  expect(stdout.trim()).toBe("HI");
});

test("a page is converted, by the worker thread", async () => {
  await writeFile(join(folder, "web.toml"), '[permission.webfetch]\n"http://127.0.0.1:*" = "allow"\n');
  const { createServer } = await import("node:http");
  const web = createServer((_, response) => response.setHeader("content-type", "text/html").end("<h1>Hello</h1>"));
  web.listen(0, "127.0.0.1");
  await once(web, "listening");
  onTestFinished(() => void web.close());
  const address = web.address();
  const port = typeof address === "object" ? address?.port : 0;
  const input = JSON.stringify({ url: `http://127.0.0.1:${port}/`, format: "markdown" });
  const { stdout } = await shell(
    toolgate(),
    "run",
    "webfetch",
    input,
    "--workspace",
    "work",
    "--config",
    join(folder, "web.toml"),
  );
  expect(stdout).toContain("# Hello");
});

test("a call that waits survives kill -9, and runs once after its approval", async () => {
  const data = join(folder, "data");
  const first = await serve(data);
  const newcomer = connect({ url: first.url });
  const { token } = await newcomer.credentials.signIn({ code: first.code });
  newcomer.close();
  const caller = callerOf(first.url, data);
  const call = { sessionId: "ses_1", callId: "c1", tool: "bash", input: { command: "echo ran | tee -a ran.txt" } };
  await caller.sessions.createSession({ sessionId: "ses_1" });
  await caller.tools.callTool({ ...call, waitMs: 0 });
  const ask = await waitForAsk(first.url, token);
  caller.close();
  first.child.kill("SIGKILL");
  await once(first.child, "exit");

  const second = await serve(data);
  const approver = connect({ url: second.url, token });
  await approver.permissions.respondToPermission({
    sessionId: "ses_1",
    permissionId: ask?.id ?? "",
    reply: PermissionReply.ONCE,
    wholeCall: true,
  });
  const again = callerOf(second.url, data);
  const { part } = await again.tools.callTool({ ...call, waitMs: 60_000 }, { timeoutMs: 0 });
  expect(outputOf(part)).toBe("ran\n");
  expect(await readFile(join(folder, "work/ran.txt"), "utf8")).toBe("ran\n");
  approver.close();
  again.close();
});

test("on a Node that is too old it runs on the one that was installed with it, or says what it needs", async () => {
  const old = join(folder, "old.mjs");
  await writeFile(
    old,
    'Object.defineProperty(process, "versions", { value: { ...process.versions, node: "18.20.0" } });',
  );
  const asOld = (...args: string[]) => shell("--import", old, toolgate(), ...args);
  expect((await asOld("--version")).stdout).toBe("0.1.0\n");
  await expect(asOld("tools", "--server", "http://127.0.0.1:9")).rejects.toMatchObject({ code: 6 });
  for (const name of await readdir(join(folder, "node_modules")))
    if (name.startsWith("node-linux")) await rm(join(folder, "node_modules", name), { recursive: true });
  await expect(asOld("--version")).rejects.toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/^toolgate needs Node 24\.12 or newer, this is 18\.20\.0: [^\n]+\n$/),
  });
});

/** Starts the installed program on a data directory. */
async function serve(data: string): Promise<{ url: string; code: string; child: ChildProcess }> {
  const place = ["--listen", "127.0.0.1:0", "--data", data, "--workspace", join(folder, "work")];
  const child = spawn(process.execPath, [toolgate(), "serve", "--json", ...place], {
    cwd: folder,
    env: { PATH: process.env.PATH, HOME: folder },
    stdio: ["ignore", "pipe", "ignore"],
  });
  onTestFinished(() => void child.kill("SIGKILL"));
  const [line] = await once(createInterface({ input: child.stdout }), "line");
  const { url, sign_in_code: code } = JSON.parse(line);
  return { url, code, child };
}

function callerOf(url: string, data: string) {
  const token = findToken("caller", url, { TOOLGATE_DATA: data });
  return connect({ url, ...(token !== undefined && { token }) });
}

/** Waits for the first open permission request. */
async function waitForAsk(url: string, token: string): Promise<PermissionRequest | undefined> {
  const approver = connect({ url, token });
  const found = new AbortController();
  const frames = approver.permissions.watchPermissions({}, { signal: found.signal, timeoutMs: 0 });
  for await (const { event } of frames) {
    if (event?.event.case !== "permissionAsked") continue;
    // Only the signal ends the stream.
    found.abort();
    approver.close();
    return event.event.value;
  }
  return undefined;
}

function outputOf(part: ToolPart | undefined): string {
  return part?.state.case === "completed" ? part.state.value.output : "";
}
