import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const lock = "package-lock.json";

/** Installs the packages of a lock file beside this one into .cache, without running their scripts, and returns the directory. */
export function installPackages(name: string, what: string): string {
  const wanted = join(import.meta.dirname, name);
  const installed = join(import.meta.dirname, "../../.cache", name);
  const modules = join(installed, "node_modules");
  // The copy inside is made last, so that an installation that broke off is repeated.
  const isCurrent = () => existsSync(join(modules, lock)) && text(join(wanted, lock)) === text(join(modules, lock));
  if (isCurrent()) return modules;
  mkdirSync(installed, { recursive: true });
  for (const file of ["package.json", lock]) cpSync(join(wanted, file), join(installed, file));
  // Not `npm ci`, which refuses a lock file that lacks packages for other systems, as some registries do.
  const line = `npm install --no-save --ignore-scripts --legacy-peer-deps --no-audit --no-fund --prefix ${installed}`;
  console.log(`the tests need ${what}: ${line}`);
  const { status } = spawnSync("sh", ["-c", line], { stdio: ["ignore", "inherit", "inherit"] });
  if (status !== 0) throw new Error(`${what}: not installed. Install it, then run the tests again: ${line}`);
  cpSync(join(wanted, lock), join(modules, lock));
  return modules;
}

const text = (path: string) => readFileSync(path, "utf8");
