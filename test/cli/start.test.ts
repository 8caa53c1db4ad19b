import { execFile } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { expect, onTestFinished, test } from "vitest";
import { commands, createProgram } from "../../src/cli/cli.ts";
import { completionScripts } from "../../src/cli/completion/scripts.ts";
import { main } from "../main.ts";
import { fakeService } from "./fake-service.ts";
import { toolgate } from "./toolgate.ts";

const root = resolve(import.meta.dirname, "../..");

/** The files of the checkout, packages left out, that a command line loads. */
async function loadedBy(...args: string[]): Promise<string[]> {
  const preload = join(import.meta.dirname, "loaded-modules.ts");
  const { stderr } = await promisify(execFile)(process.execPath, ["--import", preload, "src/main.ts", ...args], {
    cwd: root,
  });
  return stderr
    .trim()
    .split("\n")
    .filter((url) => url.startsWith("file:") && !url.includes("/node_modules/"));
}

test.each([["--version"], ["--help"]])("toolgate %s loads at most ten files", async (option) => {
  expect((await loadedBy(option)).length).toBeLessThanOrEqual(10);
});

test("the program keeps no compiled code where other users may write, and so reads none that they left there", async () => {
  const temporary = await mkdtemp(join(tmpdir(), "toolgate-start-"));
  onTestFinished(() => rm(temporary, { recursive: true }));
  expect((await main(["--version"], { TMPDIR: temporary })).code).toBe(0);
  expect(await readdir(temporary)).toEqual([]);
});

test("a client's command loads nothing of the service", async () => {
  const loaded = await loadedBy("completion", "bash");
  expect(loaded.filter((url) => /\/src\/(?!main\.ts|cli\/|client\/|core\/assets\.ts|view\/)/.test(url))).toEqual([]);
});

test("the help of asks loads no message of the contract, and no client; control: a request loads both", async () => {
  const heavy = /\/gen\/|\/src\/client\/connect\.ts/;
  expect((await loadedBy("asks", "--help")).filter((url) => heavy.test(url))).toEqual([]);
  const loaded = await loadedBy("asks", "--server", "http://127.0.0.1:9", "--token", "t").catch(({ stderr }) => [
    stderr,
  ]);
  expect(loaded.join("\n")).toMatch(heavy);
});

test("every command has a module, a summary, and help with the exit codes", async () => {
  for (const { name, summary } of commands) {
    const { code, stdout } = await toolgate([name, "--help"]);
    expect({ name, code }).toEqual({ name, code: 0 });
    expect(stdout).toContain(`Usage: toolgate ${name}`);
    expect(stdout).not.toContain("default: []");
    expect((await toolgate(["help", name])).stdout).toBe(stdout);
    expect((await toolgate(["--help"])).stdout.replaceAll(/\s+/g, " ")).toContain(`${name} ${summary}`);
  }
});

test("a name that no command has is answered with the nearest one", async () => {
  expect(await toolgate(["inbx"])).toMatchObject({ code: 2, stderr: expect.stringContaining("Did you mean inbox?") });
});

test.each(["bash", "zsh", "fish"] as const)(
  "gen/completion/toolgate.%s is what `npm run generate` writes",
  async (shell) => {
    const io = process;
    const context = { io, version: "", program: [], loadService: fakeService(io), setExitCode: () => {} };
    const program = await createProgram(context, () => true);
    expect((await toolgate(["completion", shell])).stdout).toBe(completionScripts[shell](program));
  },
);
