import { execFile } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import type { TestProject } from "vitest/node";

const run = promisify(execFile);

/** The installed package, for all tests. */
export interface Installed {
  /** The folder with its node_modules. */
  folder: string;
  npmSaid: string;
  /** Paths in the tarball. */
  packed: string[];
}

declare module "vitest" {
  export interface ProvidedContext {
    installed: Installed;
  }
}

/** Packs the checkout and installs the tarball into an empty folder, from npm's cache where it can. */
export default async function install(project: TestProject) {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-package-"));
  const pack = ["pack", "--json", "--silent", "--pack-destination", folder];
  const { stdout } = await run("npm", pack, { cwd: resolve(import.meta.dirname, "../..") });
  const found: { filename: string; files: { path: string }[] } = [JSON.parse(stdout)].flatMap(Object.values).flat()[0];
  await mkdir(join(folder, "work/.opencode/tool"), { recursive: true });
  await writeFile(join(folder, "package.json"), '{ "type": "module" }');
  const options = ["install", `./${found.filename}`, "--prefer-offline", "--no-audit", "--no-fund"];
  const installed = await run("npm", options, { cwd: folder });
  project.provide("installed", {
    folder,
    npmSaid: installed.stdout + installed.stderr,
    packed: found.files.map(({ path }) => path),
  });
  return () => rm(folder, { recursive: true, force: true });
}
