/** The life of language servers that real processes serve; only the clock is replaced. */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import type { LanguageServer } from "../../src/core/language-server.ts";
import { openWorkspace } from "../../src/tool/workspace.ts";
import type { ServerStart } from "../../src/tools/lsp/find-server.ts";
import { createLanguageServers } from "../../src/tools/lsp/language-servers.ts";

const minute = 60_000;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date"] });
});
afterEach(() => vi.useRealTimers());

/** Creates servers for files `*.fake`; `behaviour` is what the server does when it is introduced. */
async function open(behaviour = "") {
  const directory = await realpath(await mkdtemp(join(tmpdir(), "toolgate-lsp-")));
  const children: ChildProcess[] = [];
  const servers = createLanguageServers({
    settings: { languageServers: [server(behaviour)] },
    starter: {
      missingSandbox: () => undefined,
      isConfined: () => false,
      start: async (request) => start(request, children),
    },
    searchPath: "",
    isTrusted: async () => true,
    warn: () => {},
  });
  onTestFinished(async () => {
    vi.useRealTimers();
    await servers.close();
    await rm(directory, { recursive: true });
  });
  await writeFile(join(directory, "a.fake"), "");
  const place = servers.placeOf(join(directory, "a.fake"), await openWorkspace("default", directory));
  if (place === undefined) throw new Error("no server for the file");
  return { servers, place, children };
}

const server = (behaviour: string): LanguageServer => ({
  ...{ name: "fake", languages: { ".fake": "fake" }, rootMarkers: [], install: "install fake", settings: {}, env: {} },
  commands: [{ program: process.execPath, args: [join(import.meta.dirname, "../e2e/language-server.ts")] }],
  timeoutMs: 15_000,
  initializationOptions: { behaviour },
});

function start({ argv: [program, ...args], root }: ServerStart, children: ChildProcess[]) {
  const child = spawn(program, args, { cwd: root });
  children.push(child);
  const exited = new Promise<string>((resolve) => child.once("exit", (code) => resolve(`exit code ${code}`)));
  const kill = async () => {
    child.kill("SIGKILL");
    await exited;
  };
  const { stdin, stdout, stderr, pid = 0 } = child;
  return { stdin, stdout, stderr, pid, exited, kill };
}

test("a server that nobody asks for five minutes is stopped, and the next question starts another one", async () => {
  const { servers, place, children } = await open();
  const first = await servers.client(place);
  await vi.advanceTimersByTimeAsync(4 * minute);
  expect(await servers.client(place)).toBe(first);
  await vi.advanceTimersByTimeAsync(4 * minute);
  expect(servers.isRunning(place)).toBe(true);
  await vi.advanceTimersByTimeAsync(minute);
  expect(servers.isRunning(place)).toBe(false);
  expect((await first.connection.ended).isExpected).toBe(true);
  expect(await servers.client(place)).not.toBe(first);
  expect(children).toHaveLength(2);
  expect(servers.isRunning(place)).toBe(true);
});

test("a call waits 20 seconds for a server that starts; after 30 seconds the server is stopped", async () => {
  const { servers, place, children } = await open("silent");
  const asked = servers.client(place).catch((error: Error) => error.message);
  await vi.waitFor(() => expect(children).toHaveLength(1));
  await vi.advanceTimersByTimeAsync(20_000);
  expect(await asked).toContain("is still starting. Call the tool again in a few seconds.");
  expect(servers.isRunning(place)).toBe(true);
  const again = servers.client(place).catch((error: Error) => error.message);
  await vi.advanceTimersByTimeAsync(10_000);
  expect(await again).toContain("did not answer initialize within 30 s");
  expect(children).toHaveLength(1);
  await vi.waitFor(() => expect(children[0]?.signalCode).toBe("SIGKILL"));
});

test("a server that leaves two questions in a row without an answer is stopped, and not because of one", async () => {
  const { servers, place, children } = await open();
  const { connection } = await servers.client(place);
  const textDocument = { uri: "file:///a.fake", languageId: "fake", version: 1, text: "!hang\nfine\n" };
  connection.notify("textDocument/didOpen", { textDocument });
  const hover = (line: number) =>
    connection
      .request("textDocument/hover", { textDocument, position: { line, character: 0 } })
      .catch((error: Error) => error.message);
  for (let i = 0; i < 3; i += 1) {
    const hangs = hover(0);
    await vi.advanceTimersByTimeAsync(15_000);
    expect(await hangs).toContain("did not answer");
    if (i === 0) expect(await hover(1)).toMatchObject({ contents: { value: expect.stringContaining("fine") } });
  }
  expect((await connection.ended).reason).toBe("it did not answer 2 requests in a row");
  await vi.waitFor(() => expect(children[0]?.signalCode).toBe("SIGKILL"));
  expect(servers.isRunning(place)).toBe(false);
});

test("a server that ended three times is broken for five minutes", async () => {
  const { servers, place, children } = await open("crash");
  const ask = () => servers.client(place).catch((error: Error) => error.message);
  for (let i = 0; i < 3; i += 1) expect(await ask()).toContain("it ended (exit code 3)");
  const broken = await ask();
  expect(broken).toContain("is broken: it ended 3 times within 5 minutes");
  expect(broken).toContain("Last: it ended (exit code 3). If its program is damaged, install it again: install fake");
  expect(servers.isRunning(place)).toBe(false);
  expect(children).toHaveLength(3);
  await vi.advanceTimersByTimeAsync(5 * minute);
  await ask();
  expect(children).toHaveLength(4);
});

test("a server that counts columns in another unit is refused", async () => {
  const { servers, place } = await open("utf-8");
  await expect(servers.client(place)).rejects.toThrow("counts columns in utf-8, not UTF-16");
  expect(servers.isRunning(place)).toBe(false);
});
