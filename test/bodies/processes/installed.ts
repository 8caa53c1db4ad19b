import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const lock = "package-lock.json";

/**
 * Installs the packages of a lock file, by default of one beside this file, into .cache, without running their scripts, and returns the directory.
 * Files that run at the same time wait for the first one: a program of which an installation holds a descriptor for writing
 * cannot be started (ETXTBSY).
 */
export function installPackages(name: string, what: string, place = import.meta.dirname): string {
  const wanted = join(place, name);
  const installed = join(import.meta.dirname, "../../../.cache", name);
  const modules = join(installed, "node_modules");
  const isCurrent = () => existsSync(join(modules, lock)) && text(join(wanted, lock)) === text(join(modules, lock));
  if (isCurrent()) return modules;
  mkdirSync(installed, { recursive: true });
  // Not `npm ci`, which refuses a lock file that lacks packages for other systems, as some registries do.
  const line = `npm install --no-save --ignore-scripts --legacy-peer-deps --no-audit --no-fund --prefix ${installed}`;
  console.log(`the tests need ${what}: ${line}`);
  const { status } = spawnSync("flock", [join(installed, ".lock"), "sh", "-c", once(wanted, installed, line)], {
    stdio: ["ignore", "inherit", "inherit"],
  });
  if (status !== 0) throw new Error(`${what}: not installed. Install it, then run the tests again: ${line}`);
  return modules;
}

/** A script that installs, unless another process has done so. The copy inside is made last, so that an installation that broke off is repeated. */
const once = (wanted: string, installed: string, line: string) => `
  cmp -s ${wanted}/${lock} ${installed}/node_modules/${lock} && exit
  cp ${wanted}/package.json ${wanted}/${lock} ${installed} && ${line} && cp ${wanted}/${lock} ${installed}/node_modules`;

const text = (path: string) => readFileSync(path, "utf8");
