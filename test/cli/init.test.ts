import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { checkConfiguration } from "../../src/compose/local-service.ts";
import { startAtTerminal, toolgate } from "./toolgate.ts";

/** A home directory whose package managers print what the real ones print where they are set to a mirror. */
function machine() {
  const home = mkdtempSync(join(tmpdir(), "toolgate-init-"));
  onTestFinished(() => rmSync(home, { recursive: true }));
  mkdirSync(join(home, "bin"));
  const program = (name: string, script: string) => {
    writeFileSync(join(home, "bin", name), `#!/bin/sh\n${script}\n`);
    chmodSync(join(home, "bin", name), 0o755);
  };
  program("npm", "echo https://user:word@npm.mirror.example/all/");
  program(
    "python3",
    'case "$1" in -c) exit 1;; *) echo "global.index-url=\'https://pip.mirror.example/simple\'";; esac',
  );
  program("go", "echo 'https://go.mirror.example,direct'; echo sum.mirror.example");
  const env = { HOME: home, PATH: `${join(home, "bin")}:/usr/bin:/bin` };
  return { env, file: join(home, ".config/toolgate/toolgate.toml") };
}

const mirrors = ["npm.mirror.example", "pip.mirror.example", "go.mirror.example", "sum.mirror.example"];

test("init writes the preset with the registries that package managers use, and never replaces a file", async () => {
  const { env, file } = machine();
  const { code, stdout } = await toolgate(["init", "--preset", "contained", "--registries", "found"], env);
  expect([code, stdout]).toEqual([0, `wrote ${file}\n`]);
  const text = readFileSync(file, "utf8");
  expect(text).toContain(`[preset]\nname = "contained"\n`);
  expect(text).toContain(`\nregistries = ${JSON.stringify(mirrors)}\n`);
  expect(text).not.toContain("word");
  expect(await checkConfiguration(file)).toMatchObject({ findings: [] });
  const again = await toolgate(["init", "--preset", "none"], env);
  expect(again).toMatchObject({ code: 2, stderr: expect.stringContaining("exists, and stays as it is") });
  expect(readFileSync(file, "utf8")).toBe(text);
});

test("without a preset everything is a comment, and found registries are only offered", async () => {
  const { env, file } = machine();
  expect((await toolgate(["init", file, "--preset", "none"], env)).code).toBe(0);
  expect(readFileSync(file, "utf8")).toContain('# [preset]\n# name = "contained"\n');
  expect(await checkConfiguration(file)).toMatchObject({ rules: 0, findings: [] });
  const { env: other, file: contained } = machine();
  expect((await toolgate(["init", "--preset", "contained"], other)).code).toBe(0);
  expect(readFileSync(contained, "utf8")).toContain(`\n# registries = ${JSON.stringify(mirrors)}\n`);
});

test("the agents for tasks stand there as lines to uncomment", async () => {
  const { env, file } = machine();
  expect((await toolgate(["init", "--preset", "none"], env)).code).toBe(0);
  const [before = "", agents = ""] = readFileSync(file, "utf8").split("# [agent.librarian]");
  const lines = agents.replaceAll(/^# /gm, "").replace('"opencode"', '"/bin/true"');
  writeFileSync(file, `${before}[agent.librarian]${lines}`);
  expect(await checkConfiguration(file)).toMatchObject({ findings: [] });
  expect(agents).toMatch(/^# \[agent\.oracle\]$[\s\S]*^# \[agent\.general\]$[\s\S]*^# \[agent_runner\.opencode\]$/m);
});

test("without a terminal the preset has to be named", async () => {
  const { env } = machine();
  const { code, stderr } = await toolgate(["init"], env);
  expect([code, stderr]).toEqual([2, expect.stringContaining("add --preset contained or --preset none")]);
});

test("at a terminal it asks for the preset, and for each machine's registries", async () => {
  const { env, file } = machine();
  const running = startAtTerminal(["init"], env);
  await running.sees("[1/2]");
  running.child.stdin?.write("1\n");
  await running.sees("npm.mirror.example (npm)", "[y/N]");
  running.child.stdin?.write("y\n");
  expect((await running.finished).code).toBe(0);
  expect(readFileSync(file, "utf8")).toContain(`\nregistries = ${JSON.stringify(mirrors)}\n`);
});
