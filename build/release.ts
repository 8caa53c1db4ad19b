/**
 * `npm run release -- [--dry-run] VERSION [DIRECTORY]`: builds everything that a release consists of, by default into .cache/release,
 * and publishes nothing. Two runs on one commit write the same bytes. Without --dry-run the commit must have the tag of the version.
 */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import { buildPythonPackages } from "./python-tools.ts";

const root = resolve(import.meta.dirname, "..");
const text = (file: string) => readFileSync(join(root, file), "utf8");
const git = (...args: string[]) => execFileSync("git", args, { cwd: root, encoding: "utf8" }).trim();
/** The date of every file in an archive: the oldest one that a zip can hold. */
const epoch = 315_532_800;

const options = process.argv.slice(2).filter((argument) => argument !== "--dry-run");
const isDryRun = options.length < process.argv.length - 2;
const [version = "", directory = join(root, ".cache/release")] = options;
const to = resolve(directory);

checkNames();
checkVersions();
if (!isDryRun) checkTag();
rmSync(to, { recursive: true, force: true });
mkdirSync(to, { recursive: true });
writeFileSync(join(to, "notes.md"), notes());
execFileSync("npm", ["pack", "--silent", "--pack-destination", to], {
  cwd: root,
  stdio: ["ignore", "ignore", "inherit"],
});
for (const name of ["THIRD_PARTY", "sbom.cdx.json"]) copyFileSync(join(root, "dist", name), join(to, name));
buildPythonPackages(to, epoch);
zipModule();
archive(`toolgate-chart-${version}.tgz`, "deploy/helm/", ["deploy/helm/toolgate", ":!deploy/helm/toolgate/ci"]);
archive(`toolgate-container-${version}.tgz`, "", contextOf(text("Dockerfile")));
const sums = readdirSync(to).toSorted();
writeFileSync(join(to, "SHA256SUMS"), sums.map((name) => `${sha256(join(to, name))}  ${name}\n`).join(""));
process.stdout.write(readFileSync(join(to, "SHA256SUMS")));

/** Refuses a name that is not the one which was found free, or ours, in its registry; that check is a step of CONTRIBUTING.md. */
function checkNames(): void {
  const names = [
    ["package.json", /^ {2}"name": "(.*)"/m, "toolgate"],
    ["sdk/python/pyproject.toml", /^name = "(.*)"/m, "toolgate-client"],
    ["sdk/go/go.mod", /^module (.*)/m, "toolgate"],
    ["deploy/helm/toolgate/Chart.yaml", /^name: (.*)/m, "toolgate"],
  ] as const;
  for (const [file, pattern, name] of names) {
    const [, found] = pattern.exec(text(file)) ?? [];
    if (found !== name) fail(`${file} names ${found}: check that the name is free, then change it in build/release.ts`);
  }
}

function checkVersions(): void {
  const versions = [
    ["package.json", /^ {2}"version": "(.*)"/m],
    ["sdk/python/pyproject.toml", /^version = "(.*)"/m],
    ["deploy/helm/toolgate/Chart.yaml", /^version: (.*)/m],
    ["deploy/helm/toolgate/Chart.yaml", /^appVersion: "(.*)"/m],
  ] as const;
  for (const [file, pattern] of versions) {
    const [, found] = pattern.exec(text(file)) ?? [];
    if (found !== version) fail(`${file} has the version ${found}, and the release is ${version || "not named"}`);
  }
}

function checkTag(): void {
  if (git("status", "--porcelain") !== "") fail("the checkout has changes: commit them");
  if (!git("tag", "--points-at", "HEAD").split("\n").includes(`v${version}`)) fail(`the commit has no tag v${version}`);
}

/** Returns the section of the changelog. */
function notes(): string {
  const sections = text("CHANGELOG.md").split(/^## /m);
  const section = (title: string) =>
    sections.find((each) => each.startsWith(`${title}\n`) || each.startsWith(`${title} `));
  const found = section(version) ?? (isDryRun ? section("Unreleased") : undefined);
  if (found === undefined) fail(`CHANGELOG.md has no heading ${version}`);
  return found.slice(found.indexOf("\n")).trimStart();
}

/** Writes the Go module as a proxy serves it. */
function zipModule(): void {
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
function archive(name: string, prefix: string, paths: readonly string[]): void {
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
  writeFileSync(join(to, name), gzipSync(tar, { level: 9 }));
}

function sha256(file: string): string {
  return createHash("sha256").update(readFileSync(file)).digest("hex");
}

function fail(message: string): never {
  process.stderr.write(`${message}\n`);
  process.exit(1);
}
