import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir, userInfo } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { editCodex } from "../../src/cli/connect/codex.ts";

test("the program of Codex gets no token with which it could approve", async () => {
  const home = await mkdtemp(join(tmpdir(), "toolgate-codex-"));
  onTestFinished(() => rm(home, { recursive: true }));
  const program = join(home, "codex");
  const answers = `while read -r line; do [[ $line =~ '"id":'([0-9]+) ]] && echo "{$BASH_REMATCH,\\"result\\":{}}"; done`;
  await writeFile(program, `#!/bin/bash\nenv > "$HOME/environment"\n${answers}\n`, { mode: 0o755 });
  const { PATH } = process.env;
  const env = { PATH, TOOLGATE_TOKEN: "approver-token-for-tests", CODEX_HOME: "/codex" };
  await editCodex({ program, user: { ...userInfo(), name: "ann", home, env } }, []);
  const given = await readFile(join(home, "environment"), "utf8");
  expect(given).toContain("CODEX_HOME=/codex");
  expect(given).not.toContain("approver-token-for-tests");
});
