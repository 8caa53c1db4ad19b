import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir, userInfo } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { editCodex } from "../../src/cli/connect/codex.ts";

/** Creates a program that answers each request, after the given lines; returns it with its user. */
async function fakeCodex(before: string, env: Record<string, string> = {}) {
  const home = await mkdtemp(join(tmpdir(), "toolgate-codex-"));
  onTestFinished(() => rm(home, { recursive: true }));
  const program = join(home, "codex");
  const answers = `while read -r line; do [[ $line =~ '"id":'([0-9]+) ]] && echo "{$BASH_REMATCH,\\"result\\":{}}"; done`;
  await writeFile(program, `#!/bin/bash\n${before}\n${answers}\n`, { mode: 0o755 });
  const { PATH } = process.env;
  return { home, codex: { program, user: { ...userInfo(), name: "ann", home, env: { PATH, ...env } } } };
}

test("a program of Codex that does not end is killed, and what it has started holds nothing up", async () => {
  const { home, codex } = await fakeCodex(`trap "" TERM\nsleep 600 &\necho $! > "$HOME/child"`);
  await editCodex(codex, []);
  process.kill(Number(await readFile(join(home, "child"), "utf8")), "SIGKILL");
});

test("the program of Codex gets no token with which it could approve", async () => {
  const env = { TOOLGATE_TOKEN: "approver-token-for-tests", CODEX_HOME: "/codex" };
  const { home, codex } = await fakeCodex('env > "$HOME/environment"', env);
  await editCodex(codex, []);
  const given = await readFile(join(home, "environment"), "utf8");
  expect(given).toContain("CODEX_HOME=/codex");
  expect(given).not.toContain("approver-token-for-tests");
});
