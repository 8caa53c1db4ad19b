/**
 * `npm run release -- [--dry-run] VERSION [DIRECTORY]`: builds everything that a release consists of, by default into .cache/release,
 * and publishes nothing. Two runs on one commit write the same bytes. Without --dry-run the commit must have the tag of the version.
 */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { buildArchives } from "./archives.ts";
import { npmName, pythonName } from "./names.ts";

const root = resolve(import.meta.dirname, "..");
const text = (file: string) => readFileSync(join(root, file), "utf8");
const git = (...args: string[]) => execFileSync("git", args, { cwd: root, encoding: "utf8" }).trim();
const options = process.argv.slice(2).filter((argument) => argument !== "--dry-run");
const isDryRun = options.length < process.argv.length - 2;
const [version = "", directory = join(root, ".cache/release")] = options;
const to = resolve(directory);

checkNames();
checkVersions();
if (!isDryRun) checkTag();
await checkRegistries();
rmSync(to, { recursive: true, force: true });
mkdirSync(to, { recursive: true });
writeFileSync(join(to, "notes.md"), notes());
execFileSync("npm", ["pack", "--silent", "--pack-destination", to], {
  cwd: root,
  stdio: ["ignore", "ignore", "inherit"],
});
for (const name of ["THIRD_PARTY", "sbom.cdx.json"]) copyFileSync(join(root, "dist", name), join(to, name));
buildArchives(to, version);
const sums = readdirSync(to).toSorted();
writeFileSync(join(to, "SHA256SUMS"), sums.map((name) => `${sha256(join(to, name))}  ${name}\n`).join(""));
process.stdout.write(readFileSync(join(to, "SHA256SUMS")));

/** Refuses a name that is not the one which the documentation, the code of clients and the values of the chart have. */
function checkNames(): void {
  const names = [
    ["package.json", /^ {2}"name": "(.*)"/m, "toolgate"],
    ["sdk/python/pyproject.toml", /^name = "(.*)"/m, "toolgate-client"],
    ["sdk/go/go.mod", /^module (.*)/m, "toolgate"],
    ["deploy/helm/toolgate/Chart.yaml", /^name: (.*)/m, "toolgate"],
  ] as const;
  for (const [file, pattern, name] of names) {
    const [, found] = pattern.exec(text(file)) ?? [];
    if (found !== name) fail(`${file} names ${found}: change it in build/release.ts and the pages, too`);
  }
}

/** Refuses names that others have in the registries, and outside a dry run also names that no registry has answered about. */
async function checkRegistries(): Promise<void> {
  const repository = JSON.parse(text("package.json")).repository?.url ?? "";
  const states = await Promise.all([npmName("toolgate", repository), pythonName("toolgate-client", repository)]);
  for (const { registry, name, state, reason } of states)
    process.stderr.write(`${registry}: the name ${name} is ${state}: ${reason}\n`);
  if (states.some(({ state }) => state === "taken"))
    fail("choose another name; ours has the `repository` of package.json in its record");
  if (!isDryRun && states.some(({ state }) => state === "not checked"))
    fail("a release needs an answer of each registry: repeat it where npm and pip reach theirs, or use --dry-run");
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

function sha256(file: string): string {
  return createHash("sha256").update(readFileSync(file)).digest("hex");
}

function fail(message: string): never {
  process.stderr.write(`${message}\n`);
  process.exit(1);
}
