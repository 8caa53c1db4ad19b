import { execFile } from "node:child_process";
import { copyFile, cp, mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";

const root = join(import.meta.dirname, "../..");
/** Lock files of the projects. */
const pinned = join(import.meta.dirname, "projects");
/** They are installed here once for each version of their lock files. */
const installed = join(root, ".cache/projects");
const lockFiles = ["package.json", "package-lock.json", "go/go.mod", "go/go.sum"];
const modules = join(installed, "go/modules");

/** Installs the projects by their lock files, unless these are the ones that are installed. */
export async function installProjects(): Promise<void> {
  const read = (folder: string) => Promise.all(lockFiles.map((file) => readFile(join(folder, file), "utf8")));
  const [wanted, there] = await Promise.all([read(pinned), read(installed).catch(() => [])]);
  if (there.join() === wanted.join()) return;
  await mkdir(join(installed, "go"), { recursive: true });
  const [last = "", ...others] = lockFiles.toReversed();
  for (const file of others) await copyFile(join(pinned, file), join(installed, file));
  await run("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund"], installed);
  await run("go", ["mod", "download", "-modcacherw"], join(pinned, "go"), { GOMODCACHE: modules });
  // Last, so that an installation that broke off is repeated.
  await copyFile(join(pinned, last), join(installed, last));
}

/** Lays a project into an empty directory. */
export const layProject: Readonly<Record<string, (directory: string) => Promise<void>>> = {
  async toolgate(directory) {
    const { stdout } = await run("git", ["ls-files", "-z"], root);
    for (const file of stdout.split("\0").filter(Boolean))
      await cp(join(root, file), join(directory, file), { recursive: true });
    await run("cp", ["-a", join(root, "node_modules"), directory], root);
  },
  async "fast-uri"(directory) {
    const all = join(installed, "node_modules");
    await cp(join(all, "fast-uri"), directory, { recursive: true });
    await run("cp", ["-a", all, directory], root);
  },
  async uuid(directory) {
    await cp(join(modules, "github.com/google/uuid@v1.6.0"), directory, { recursive: true });
  },
};

async function run(program: string, args: readonly string[], cwd: string, env: Record<string, string> = {}) {
  const options = { cwd, env: { ...process.env, ...env }, maxBuffer: 16 * 1_048_576 };
  return await promisify(execFile)(program, [...args], options);
}
