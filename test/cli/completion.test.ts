import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { type RunningProcess, startProgramAtTerminal, toolgate } from "./toolgate.ts";

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "toolgate-completion-"));
  await writeFile(join(folder, "rules.toml"), "");
  for (const shell of ["bash", "zsh", "fish"]) {
    const { stdout } = await toolgate(["completion", shell]);
    await writeFile(join(folder, shell), stdout);
  }
});
afterAll(() => rm(folder, { recursive: true }));

/** A shell that has the script, and in place of the program something that says what it was given. */
async function openShell(shell: "bash" | "zsh"): Promise<RunningProcess> {
  const program = shell === "bash" ? ["bash", "--norc", "-i"] : ["zsh", "-f", "-i"];
  const running = startProgramAtTerminal(program, { HOME: folder });
  onTestFinished(() => void running.child.kill("SIGKILL"));
  if (shell === "zsh") running.child.stdin?.write("autoload -U compinit && compinit -u -D\n");
  running.child.stdin?.write(
    `cd ${folder}; source ${join(folder, shell)}; toolgate() { echo "<$*>"; }; echo rea''dy\n`,
  );
  await running.sees("ready");
  return running;
}

const cases = [
  ["a command", "grant", "grants"],
  ["a command below a command", "audit exp", "audit export"],
  ["an option of the command", "serve --unatt", "serve --unattended"],
  ["an option of all commands", "grants --token-", "grants --token-file"],
  ["the value of an option of which there are only some", "serve --unattended wa", "serve --unattended wait"],
  ["the value of an argument", "reply per_1 alw", "reply per_1 always"],
  ["a file where one is meant", "serve --config rul", "serve --config rules.toml"],
] as const;

describe.each(["bash", "zsh"] as const)("%s", (shell) => {
  test.each(cases)("completes %s", async (_what, typed, line) => {
    const { child, sees } = await openShell(shell);
    child.stdin?.write(`toolgate ${typed}\t\n`);
    await sees(`<${line}>`);
  });

  test("evaluates nothing that was typed", async () => {
    const trap = join(folder, `trap-${shell}`);
    const { child, sees } = await openShell(shell);
    child.stdin?.write(`toolgate call bash $(touch ${trap}) --sess\t\x15echo do''ne\n`);
    await sees("done");
    expect(existsSync(trap)).toBe(false);
  });
});

test.each(cases)("fish completes %s", (_what, typed, line) => {
  const script = `source ${join(folder, "fish")}\ncd ${folder}\ncomplete -C ${JSON.stringify(`toolgate ${typed}`)}`;
  const offered = spawnSync("fish", ["--no-config", "-c", script], { env: { ...process.env, HOME: folder } });
  const words = offered.stdout
    .toString()
    .split("\n")
    .map((row) => row.split("\t", 1)[0]);
  expect(words).toContain(line.split(" ").at(-1));
});
