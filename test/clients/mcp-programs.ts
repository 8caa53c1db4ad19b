import { execFile } from "node:child_process";
import { copyFile, mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";

/** Lock files of foreign MCP programs. */
export const pinned = join(import.meta.dirname, "mcp");
/** The programs are installed here once for each version of their lock files. */
export const installed = join(import.meta.dirname, "../../.cache/mcp-clients");
export const python = join(installed, "venv/bin/python");
/** Returns the path of a file of a package of the protocol's authors. */
export const inModules = (path: string) => join(installed, "node_modules/@modelcontextprotocol", path);

/** Installs the programs by their lock files, unless these are the ones that are installed. */
export async function installPrograms(): Promise<void> {
  const files = ["package.json", "package-lock.json", "requirements.txt"];
  const read = (folder: string) => Promise.all(files.map((file) => readFile(join(folder, file), "utf8")));
  const [wanted, there] = await Promise.all([read(pinned), read(installed).catch(() => [])]);
  if (there.join() === wanted.join()) return;
  await mkdir(installed, { recursive: true });
  const [requirements = "", ...others] = files.toReversed();
  for (const file of others) await copyFile(join(pinned, file), join(installed, file));
  await run("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
  await run("python3", ["-m", "venv", "venv"]);
  await run(python, ["-m", "pip", "install", "--quiet", "--requirement", join(pinned, requirements)]);
  // Last, so that an installation that broke off is repeated.
  await copyFile(join(pinned, requirements), join(installed, requirements));
}

async function run(program: string, args: readonly string[]): Promise<void> {
  await promisify(execFile)(program, [...args], { cwd: installed, maxBuffer: 16 * 1_048_576 });
}
