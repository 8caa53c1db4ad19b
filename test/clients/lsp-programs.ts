import { execFile } from "node:child_process";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";

const cache = join(import.meta.dirname, "../../.cache");
const inCache = (name: string) => ({ pinned: join(import.meta.dirname, name), installed: join(cache, name) });
const servers = inCache("lsp");
const others = inCache("more-lsp");

/** The directory of the programs of TypeScript and pyright. */
export const serverPrograms = join(servers.installed, "node_modules/.bin");

/** The directory of the programs of further language servers: the sandbox shows `node_modules` wherever it lies. */
export const otherServerPrograms = join(others.installed, "node_modules/.bin");

/** Installs TypeScript and pyright by their lock file. */
export async function installServers(): Promise<void> {
  await install(servers, ["package-lock.json"]);
}

/** Installs further language servers: those of npm, clangd, and gopls, which is built. */
export async function installOtherServers(): Promise<void> {
  await install(others, ["package-lock.json", "requirements.txt", "go.mod", "go.sum"], async (run) => {
    const python = "node_modules/.python";
    await run("python3", ["-m", "pip", "install", "--quiet", "--target", python, "--requirement", "requirements.txt"]);
    await run("ln", ["--symbolic", `../.python/clangd/data/bin/clangd`, "node_modules/.bin/clangd"]);
    await run("go", ["build", "-o", "node_modules/.bin/gopls", "golang.org/x/tools/gopls"]);
  });
}

type Run = (program: string, args: readonly string[]) => Promise<unknown>;

/** Installs packages by their lock files, unless these are the ones that are installed. */
async function install(
  { pinned, installed }: ReturnType<typeof inCache>,
  locks: readonly string[],
  more: (run: Run) => Promise<void> = async () => {},
): Promise<void> {
  const read = (directory: string) =>
    Promise.all(locks.map((file) => readFile(join(directory, file), "utf8").catch(() => "")));
  const stamp = join(installed, "node_modules/.toolgate-lock.json");
  const wanted = JSON.stringify(await read(pinned));
  if (wanted === (await readFile(stamp, "utf8").catch(() => ""))) return;
  await mkdir(installed, { recursive: true });
  for (const file of ["package.json", ...locks]) await copyFile(join(pinned, file), join(installed, file));
  const run: Run = (program, args) =>
    promisify(execFile)(program, [...args], { cwd: installed, maxBuffer: 16 * 1_048_576 });
  await run("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
  await more(run);
  // Written last, so that an installation that broke off is repeated.
  await writeFile(stamp, wanted);
}
