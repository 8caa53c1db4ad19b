import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { programEntry } from "../main.ts";

/** Runs the rest where /etc is a copy that ends with it: git's system file has to exist, and the machine may lack it. */
const script = `
  mount -t tmpfs tmpfs "$1/mount"
  mkdir "$1/mount/upper" "$1/mount/work"
  mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/mount/upper,workdir=$1/mount/work" /etc
  printf '[host]\\n\\tname = value\\n' > /etc/gitconfig
  cd "$1/workspace"
  exec "$2" "$3" run bash '{"command": "env -i git config --system --list"}' --config "$1/toolgate.toml"
`;

test("git's system file has the settings of the host, then those of the sandbox, also without our variables", () => {
  const folder = mkdtempSync(join(tmpdir(), "toolgate-git-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  for (const name of ["mount", "workspace"]) mkdirSync(join(folder, name));
  writeFileSync(join(folder, "toolgate.toml"), '[permission]\nbash = "allow"\n');
  const own = ["--mount", "sh", "-ec", script, "sh", folder, process.execPath, programEntry()];
  const printed = execFileSync("unshare", own, {
    env: { PATH: process.env.PATH, HOME: folder },
    encoding: "utf8",
    stdio: ["ignore", "pipe", "pipe"],
  });
  expect(printed).toMatch(/host\.name=value\n\s*safe\.barerepository=explicit\n\s*core\.fsmonitor=false\n/);
});
