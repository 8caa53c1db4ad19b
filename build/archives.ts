import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import { buildPythonPackages } from "./python-tools.ts";

const root = resolve(import.meta.dirname, "..");
const git = (...args: string[]) => execFileSync("git", args, { cwd: root, encoding: "utf8" });
/** The date of every file in an archive: the oldest one that a zip can hold. */
const epoch = 315_532_800;

/** Builds the artifacts of a release that npm does not pack. Two runs on the same files write the same bytes. */
export function buildArchives(to: string, version: string): void {
  buildPythonPackages(to, epoch);
  zipModule(to, version);
  const chart = ["deploy/helm/toolgate", ":!deploy/helm/toolgate/ci"];
  archive(join(to, `toolgate-chart-${version}.tgz`), "deploy/helm/", chart);
  const dockerfile = readFileSync(join(root, "Dockerfile"), "utf8");
  archive(join(to, `toolgate-container-${version}.tgz`), "", contextOf(dockerfile));
}

/** Writes the Go module as a proxy serves it. */
function zipModule(to: string, version: string): void {
  const script = `
import sys, zipfile
to, prefix = sys.argv[1:]
with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
    for name in sys.stdin.read().split():
        archive.writestr(zipfile.ZipInfo(prefix + name), open(name, "rb").read(), zipfile.ZIP_DEFLATED)
`;
  const prefix = `toolgate@v${version}/`;
  execFileSync("python3", ["-c", script, join(to, `toolgate-go-${version}.zip`), prefix], {
    cwd: join(root, "sdk/go"),
    input: git("-C", "sdk/go", "ls-files"),
  });
}

/** Returns what the image is built of: the Dockerfile, and what its COPY lines name. */
function contextOf(dockerfile: string): string[] {
  const copied = [...dockerfile.matchAll(/^COPY (?!--)(.*) \S+$/gm)].flatMap(([, names = ""]) => names.split(" "));
  return ["Dockerfile", ...copied];
}

/** Writes committed files, as they are now, into a tar whose bytes depend on nothing else; paths lose the prefix. */
function archive(to: string, prefix: string, paths: readonly string[]): void {
  const owner = [
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--mode=u=rwX,go=rX",
    `--mtime=@${epoch}`,
    "--format=gnu",
  ];
  const list = ["--no-recursion", "--null", "--files-from=-", `--transform=s,^${prefix},,`];
  const tar = execFileSync("tar", ["--create", ...owner, ...list], {
    cwd: root,
    input: git("ls-files", "-z", ...paths),
    maxBuffer: 2 ** 30,
  });
  writeFileSync(to, gzipSync(tar, { level: 9 }));
}
