import { spawnSync } from "node:child_process";
import { cpSync, readdirSync, renameSync, rmSync, statSync, symlinkSync } from "node:fs";
import { join, resolve } from "node:path";
import type { TestProject } from "vitest/node";

declare module "vitest" {
  interface ProvidedContext {
    /** Path of the bundled command; undefined where services start from source. */
    program: string | undefined;
  }
}

const root = resolve(import.meta.dirname, "..");
const consoleDirectory = join(root, "dist/console");
/** Has the layout of the package. */
const packageDirectory = join(root, "node_modules/.cache/toolgate");

/** Before all tests: builds the console and the program if a source is newer than the last build. */
export default function setup({ provide }: TestProject): void {
  buildConsole();
  if (isStale(join(packageDirectory, "dist/main.js"), ["bin", "src", "gen", "build", "package-lock.json"]))
    buildPackage();
  provide("program", join(packageDirectory, "bin/toolgate.js"));
}

/** Builds the console if a source is newer than the last build. */
export function buildConsole(): void {
  const page = join(consoleDirectory, "index.html");
  if (isStale(page, ["build/console.ts", "src/console", "src/view", "gen", "package-lock.json"]))
    run("node_modules/vite/bin/vite.js", "build", "src/console", "--config", "build/console.ts");
}

/** Bundles the program as for the package: a service starts from a bundle with a third of the CPU time. */
function buildPackage(): void {
  const directory = `${packageDirectory}-${process.pid}`;
  const dist = join(directory, "dist");
  run("build/program.ts", dist);
  symlinkSync(consoleDirectory, join(dist, "console"));
  cpSync(join(root, "bin"), join(directory, "bin"), { recursive: true });
  cpSync(join(root, "package.json"), join(directory, "package.json"));
  rmSync(packageDirectory, { recursive: true, force: true });
  renameSync(directory, packageDirectory);
}

function run(...args: string[]): void {
  const { status } = spawnSync(process.execPath, args, {
    cwd: root,
    stdio: ["ignore", "ignore", "inherit"],
    // The mode of the tests would make a development build.
    env: { ...process.env, NODE_ENV: "production" },
  });
  if (status !== 0) throw new Error(`node ${args.join(" ")} failed with status ${status}`);
}

function isStale(file: string, sources: readonly string[]): boolean {
  const built = statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? 0;
  return sources.some((path) => newest(join(root, path)) >= built);
}

function newest(path: string): number {
  const found = statSync(path);
  if (!found.isDirectory()) return found.mtimeMs;
  return Math.max(
    ...readdirSync(path, { recursive: true, encoding: "utf8" }).map((name) => statSync(join(path, name)).mtimeMs),
  );
}
