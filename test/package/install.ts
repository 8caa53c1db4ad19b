import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
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
  /** The folder of all artifacts of the release. */
  artifacts: string;
}

declare module "vitest" {
  export interface ProvidedContext {
    installed: Installed;
  }
}

/** Builds a release of the checkout and installs its tarball into an empty folder, from npm's cache where it can. */
export default async function install(project: TestProject) {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-package-"));
  const root = resolve(import.meta.dirname, "../..");
  const { version } = JSON.parse(await readFile(join(root, "package.json"), "utf8"));
  const artifacts = join(folder, "release");
  await run(process.execPath, ["build/release.ts", "--dry-run", version, artifacts], { cwd: root });
  const tarball = join(artifacts, `toolgate-${version}.tgz`);
  const { stdout } = await run("tar", ["--list", "--file", tarball]);
  await mkdir(join(folder, "work/.opencode/tool"), { recursive: true });
  await writeFile(join(folder, "package.json"), '{ "type": "module" }');
  const options = ["install", tarball, "--prefer-offline", "--no-audit", "--no-fund"];
  const installed = await run("npm", options, { cwd: folder });
  project.provide("installed", {
    folder,
    npmSaid: installed.stdout + installed.stderr,
    packed: stdout
      .trim()
      .split("\n")
      .map((path) => path.replace(/^package\//, "")),
    artifacts,
  });
  return () => rm(folder, { recursive: true, force: true });
}
