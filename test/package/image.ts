import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { cp, mkdir, readFile, realpath, rename, rm, stat, symlink } from "node:fs/promises";
import { homedir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";

const execute = promisify(execFile);
const run = (program: string, ...args: string[]) => execute(program, args, { maxBuffer: 64 * 1_048_576 });

/** An image, and what its Dockerfile states about its containers. */
export interface Image {
  readonly root: string;
  /** The root from which it was built. */
  readonly base: string;
  /** The root of the stage named `package`. */
  readonly packed: string;
  readonly env: Record<string, string>;
  readonly user: string;
  readonly volumes: readonly string[];
  readonly entrypoint: readonly string[];
  readonly command: readonly string[];
  readonly healthcheck: readonly string[];
}

/**
 * Builds an image in a directory by the lines of the Dockerfile of a context. Each line runs in a root made from Debian's packages,
 * with the Node that runs this and npm, so that no container engine is needed.
 */
export async function buildImage(context: string, directory: string): Promise<Image> {
  const base = join(directory, "base");
  await makeBase(base);
  const stated = new Map<string, string>();
  const stages = new Map<string, string>();
  let [root, cwd] = ["", "/"];
  for (const [instruction, text] of await instructionsOf(context))
    switch (instruction) {
      case "FROM": {
        const [, name = "image"] = /^node:24-bookworm-slim(?: AS (\w+))?$/.exec(text) ?? fail(instruction, text);
        [root, cwd] = [join(directory, name), "/"];
        stages.set(name, root);
        await run("cp", "--archive", base, root);
        break;
      }
      case "WORKDIR":
        cwd = text;
        await mkdir(join(root, cwd), { recursive: true });
        break;
      case "COPY": {
        const names = text.split(" ");
        const to = join(root, cwd, names.pop() ?? "");
        for (const name of names) await run("cp", "--recursive", join(context, name), to);
        break;
      }
      case "RUN":
        await runInRoot(root, cwd, text, stages);
        break;
      default:
        stated.set(instruction, text);
    }
  const listOf = (instruction: string, text = stated.get(instruction) ?? ""): string[] =>
    JSON.parse(text.slice(text.indexOf("[")));
  const known = new Set(["USER", "ENV", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"]);
  for (const [instruction, text] of stated) if (!known.has(instruction)) fail(instruction, text);
  return {
    ...{ root, base, packed: stages.get("package") ?? "", user: stated.get("USER") ?? "", volumes: listOf("VOLUME") },
    env: {
      ...{ PATH: path, HOME: "/home/toolgate" },
      ...Object.fromEntries((stated.get("ENV") ?? "").split(/\s+/).map((each) => each.split("=", 2))),
    },
    ...{ entrypoint: listOf("ENTRYPOINT"), command: listOf("CMD"), healthcheck: listOf("HEALTHCHECK") },
  };
}

const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

function fail(instruction: string, text: string): never {
  throw new Error(`the Dockerfile has a line that does not run here: ${instruction} ${text}`);
}

/** Yields the instructions of the Dockerfile, with their continued lines. */
async function instructionsOf(context: string): Promise<(readonly [string, string])[]> {
  const text = await readFile(join(context, "Dockerfile"), "utf8");
  const lines = text
    .replaceAll(/^\s*#.*\n/gm, "")
    .replaceAll(/\\\n/g, "")
    .split("\n");
  return lines.filter((line) => line !== "").map((line) => [line.replace(/ .*/, ""), line.replace(/^\w+ /, "")]);
}

/** Makes a root like that of the image from which ours is built: Debian's smallest, without documentation, with Node and npm. */
async function makeBase(root: string): Promise<void> {
  await mkdir(root);
  await run("tar", "--extract", "--file", await debian(), "--directory", root);
  const local = join(root, "usr/local");
  await cp(await realpath(process.execPath), join(local, "bin/node"));
  const { stdout } = await run("sh", "-c", 'realpath "$(command -v npm)"');
  await cp(resolve(stdout.trim(), "../.."), join(local, "lib/node_modules/npm"), { recursive: true });
  for (const name of ["npm", "npx"])
    await symlink(`../lib/node_modules/npm/bin/${name}-cli.js`, join(local, "bin", name));
}

/** Unpacking Debian's packages takes 45 s of CPU: later runs on this machine have an archive of them, for a week. */
async function debian(): Promise<string> {
  const left = ["man", "doc", "locale", "info"].map((name) => `--dpkgopt=path-exclude=/usr/share/${name}/*`);
  // As in Debian's images, apt stores no packages and no index of them.
  const apt = ['Acquire::Languages "none"', 'Dir::Cache::pkgcache ""', 'Dir::Cache::srcpkgcache ""'];
  const clean = 'DPkg::Post-Invoke {"rm -f /var/cache/apt/archives/*.deb";}';
  const options = ["--variant=minbase", "--quiet", "--dpkgopt=force-unsafe-io", ...left];
  options.push(...[...apt, clean].map((each) => `--aptopt=${each}`));
  const digest = createHash("sha256").update(options.join()).digest("hex").slice(0, 12);
  const cache = join(homedir(), ".cache/toolgate-tests");
  const file = join(cache, `bookworm-${digest}.tar`);
  const { mtimeMs } = await stat(file).catch(() => ({ mtimeMs: 0 }));
  if (mtimeMs > Date.now() - 7 * 86_400_000) return file;
  await mkdir(cache, { recursive: true });
  // Another run never sees half of it.
  const made = `${file.slice(0, -4)}.${process.pid}.tar`;
  await run("mmdebstrap", ...options, "bookworm", made);
  await rename(made, file);
  return file;
}

/** Variables by which a machine reaches its registries, and files that some of them name. */
const network = /^(https?_proxy|no_proxy|npm_config_(registry|proxy|https_proxy)|node_extra_ca_certs)$/i;

/** Runs the text of a RUN instruction as root. */
export async function runInRoot(
  root: string,
  cwd: string,
  text: string,
  stages: ReadonlyMap<string, string> = new Map(),
): Promise<void> {
  const [, from = "", source = "", target = ""] =
    /^--mount=type=bind,from=(\w+),source=(\S+),target=(\S+) /.exec(text) ?? [];
  const env: Record<string, string | undefined> = { PATH: path, HOME: "/root" };
  const mounts = ["--bind", root, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run"];
  mounts.push("--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf");
  for (const [name, value = ""] of Object.entries(process.env).filter(([name]) => network.test(name))) {
    env[name] = value.startsWith("/") ? `/run/${name}` : value;
    if (value.startsWith("/")) mounts.push("--ro-bind", value, `/run/${name}`);
  }
  if (from !== "") mounts.push("--ro-bind", join(stages.get(from) ?? "", source), target);
  else {
    // What npm has fetched before. The line that has the mount empties its cache.
    await mkdir(join(homedir(), ".npm"), { recursive: true });
    mounts.push("--bind", join(homedir(), ".npm"), "/run/npm");
    Object.assign(env, { npm_config_cache: "/run/npm", npm_config_prefer_offline: "true" });
  }
  const line = text.replace(/^--mount=\S+ /, "");
  const args = [...mounts, "--chdir", cwd, "--cap-add", "ALL", "--die-with-parent", "sh", "-ec", line];
  await execute("bwrap", args, { env, maxBuffer: 64 * 1_048_576 }).catch(({ stdout, stderr }) => {
    throw new Error(`${line} failed:\n${stdout}${stderr}`);
  });
  if (target !== "") await rm(join(root, target));
}
