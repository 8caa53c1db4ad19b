import { execFile } from "node:child_process";
import { copyFile, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import type { TestProject } from "vitest/node";
import { parse } from "yaml";
import { installPythonTools } from "../../build/python-tools.ts";
import { needPrograms } from "../programs.ts";

const run = promisify(execFile);
const root = resolve(import.meta.dirname, "../..");
const packed = join(root, ".cache/packed");

/** The installed package, for all tests. */
export interface Installed {
  /** The folder with its node_modules. */
  folder: string;
  npmSaid: string;
  /** Paths in the tarball. */
  packed: string[];
  /** The folder of all artifacts of the release. */
  artifacts: string;
  /** The checkout with the tag of the version, in which the release was built, and the commands of its workflow after that. */
  checkout: string;
  commandsAfter: string[];
}

declare module "vitest" {
  export interface ProvidedContext {
    installed: Installed;
  }
}

/** Builds a release as its workflow does, and installs its tarball into an empty folder, from npm's cache where it can. */
export default async function install(project: TestProject) {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-package-"));
  const { version } = JSON.parse(await readFile(join(root, "package.json"), "utf8"));
  const checkout = join(folder, "checkout");
  const tree = await tagCheckout(checkout, `v${version}`);
  const { jobs } = parse(await readFile(join(checkout, ".github/workflows/release.yml"), "utf8"));
  const commands: string[] = jobs.release.steps.flatMap((step: { run?: string }) => step.run ?? []);
  const [dependencies, build = "", ...commandsAfter] = commands;
  if (dependencies !== "npm ci") throw new Error(`the workflow of a release begins with ${dependencies}`);
  needPrograms([["bwrap", "bubblewrap"]]);
  // A link to the packages would name other paths in declarations.
  const packages = ["--bind", join(root, "node_modules"), join(checkout, "node_modules")];
  await run("bwrap", ["--dev-bind", "/", "/", ...packages, "--die-with-parent", "bash", "-ec", build], {
    cwd: checkout,
    // The mode of the tests would make another build.
    env: { ...process.env, NODE_ENV: undefined, GITHUB_REF_NAME: `v${version}` },
  });
  const artifacts = join(checkout, ".cache/release");
  const tarball = join(artifacts, `toolgate-${version}.tgz`);
  // test:snippets installs it, too, if no file has changed.
  await rm(packed, { recursive: true, force: true });
  await mkdir(packed, { recursive: true });
  await copyFile(tarball, join(packed, `${tree}.tgz`));
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
    ...{ artifacts, checkout, commandsAfter },
  });
  return () => rm(folder, { recursive: true, force: true });
}

/**
 * Makes a checkout of the tag, of the files as they are now, with what `npm ci` and earlier builds have installed here. Returns the
 * hash of its files.
 */
async function tagCheckout(directory: string, tag: string): Promise<string> {
  await mkdir(join(directory, ".cache"), { recursive: true });
  installPythonTools();
  const git = (...args: string[]) => run("git", args, { cwd: directory });
  const changed = await run("git", ["stash", "create"], { cwd: root });
  const commit = changed.stdout.trim() || "HEAD";
  await run("sh", ["-ec", `git archive ${commit} | tar -x -C "$1"`, "sh", directory], { cwd: root });
  await git("init", "--quiet");
  await git("add", "--all", "--force");
  const author = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
  await git(...author, "commit", "--quiet", "--message", "release");
  await git(...author, "tag", "--annotate", tag, "--message", tag);
  await mkdir(join(directory, "node_modules"));
  await symlink(join(root, ".cache/python-tools"), join(directory, ".cache/python-tools"));
  return (await git("rev-parse", "HEAD^{tree}")).stdout.trim();
}
