import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { expect, inject, onTestFinished, test } from "vitest";
import { buildArchives } from "../../build/archives.ts";
import { npmName, pythonName } from "../../build/names.ts";

const root = resolve(import.meta.dirname, "../..");
const run = promisify(execFile);
const { artifacts, checkout, commandsAfter, folder } = inject("installed");
const text = (name: string) => readFile(join(artifacts, name), "utf8");

test("a release has every artifact, each with its checksum", async () => {
  const names = await readdir(artifacts);
  expect(names.toSorted()).toEqual([
    "SHA256SUMS",
    "THIRD_PARTY",
    "notes.md",
    "sbom.cdx.json",
    "toolgate-0.1.0.tgz",
    "toolgate-chart-0.1.0.tgz",
    "toolgate-container-0.1.0.tgz",
    "toolgate-go-0.1.0.zip",
    "toolgate_client-0.1.0-py3-none-any.whl",
    "toolgate_client-0.1.0.tar.gz",
  ]);
  const sums = (await text("SHA256SUMS")).trimEnd().split("\n");
  const expected = await Promise.all(
    names
      .filter((name) => name !== "SHA256SUMS")
      .toSorted()
      .map(async (name) => {
        const digest = createHash("sha256").update(await readFile(join(artifacts, name)));
        return `${digest.digest("hex")}  ${name}`;
      }),
  );
  expect(sums).toEqual(expected);
});

// What npm packs is compared with what the image packs: image.test.ts.
test("its archives and Python packages, built in another checkout, have the same bytes", async () => {
  const again = join(folder, "again");
  await mkdir(again);
  buildArchives(again, "0.1.0");
  const names = await readdir(again);
  expect(names).toHaveLength(5);
  for (const name of names) {
    const [first, second] = await Promise.all([readFile(join(artifacts, name)), readFile(join(again, name))]);
    expect(first.equals(second), name).toBe(true);
  }
});

test("its bill of materials has what is inlined and what npm installs beside it", async () => {
  const bill = JSON.parse(await text("sbom.cdx.json"));
  expect(bill).toMatchObject({
    ...{ bomFormat: "CycloneDX", specVersion: "1.6" },
    metadata: { component: { name: "toolgate", version: "0.1.0", purl: "pkg:npm/toolgate@0.1.0" } },
  });
  const names = bill.components.map(({ name }: { name: string }) => name);
  expect(names).toEqual(expect.arrayContaining(["zod", "commander", "ioredis", "@vscode/ripgrep"]));
  expect(bill.dependencies[0].dependsOn).toHaveLength(names.length);
  expect(await text("THIRD_PARTY")).toMatch(/^zod \d+\./m);
});

test("its archives hold committed files under the names by which clients look for them", async () => {
  const list = async (name: string) =>
    (await run("tar", ["--list", "--file", join(artifacts, name)])).stdout.trim().split("\n");
  expect(await list("toolgate-chart-0.1.0.tgz")).toEqual(
    expect.arrayContaining(["toolgate/Chart.yaml", "toolgate/values.schema.json"]),
  );
  expect(await list("toolgate-container-0.1.0.tgz")).toEqual(
    expect.arrayContaining(["Dockerfile", "package-lock.json", "src/main.ts"]),
  );
  const zip = ["-c", "import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist())"];
  const { stdout } = await run("python3", [...zip, join(artifacts, "toolgate-go-0.1.0.zip")]);
  expect(stdout.split(" ")).toContain("toolgate@v0.1.0/go.mod");
});

test("its workflow drafts a release of all of them, with the notes of the changelog", async () => {
  const [draft = "", ...more] = commandsAfter;
  expect(more).toEqual([]);
  // GitHub is not reached: a program in the place of its client prints its arguments.
  await writeFile(join(folder, "gh"), '#!/bin/sh\nprintf "%s\\n" "$@"\n', { mode: 0o755 });
  const env = { ...process.env, PATH: `${folder}:${process.env.PATH}`, GITHUB_REF_NAME: "v0.1.0" };
  const { stdout } = await run("bash", ["-ec", draft], { cwd: checkout, env });
  const files = (await readdir(artifacts)).map((name) => `.cache/release/${name}`);
  const options = ["--draft", "--verify-tag", "--notes-file", ".cache/release/notes.md"];
  const words = stdout.trim().split("\n");
  expect(words.slice(0, -files.length)).toEqual(["release", "create", "v0.1.0", ...options]);
  expect(words.slice(-files.length).toSorted()).toEqual(files.toSorted());
  expect(await text("notes.md")).toMatch(/\w/);
});

test("a version that the packages do not have, and a commit without the tag, are refused", async () => {
  const release = (...args: string[]) => run(process.execPath, ["build/release.ts", ...args], { cwd: root });
  await expect(release("--dry-run", "9.9.9")).rejects.toThrow("package.json has the version 0.1.0");
  await expect(release("0.1.0")).rejects.toThrow(/has no tag v0\.1\.0|has changes/);
});

const ours = "git+ssh://git@git.example/tools/toolgate.git";

test.each([
  { record: "https://git.example/tools/toolgate", state: "ours" },
  { record: "https://git.example/others/toolgate", state: "taken" },
  { record: undefined, state: "free" },
])("a name whose record in npm's registry and Python's index is $record is $state", async ({ record, state }) => {
  const env = await startRegistries(record);
  expect(await statesOf(env)).toEqual([state, state]);
});

test("a name about which no registry answers is not checked, and no release is built", async () => {
  const env = registriesAt("http://127.0.0.1:1");
  expect(await statesOf(env)).toEqual(["not checked", "not checked"]);
  const released = run(process.execPath, ["build/release.ts", "0.1.0", join(folder, "none")], { cwd: checkout, env });
  await expect(released).rejects.toThrow("a release needs an answer of each registry");
});

async function statesOf(env: Record<string, string | undefined>): Promise<string[]> {
  const states = await Promise.all([npmName("toolgate", ours, env), pythonName("toolgate-client", ours, env)]);
  return states.map(({ state }) => state);
}

const registriesAt = (url: string) => ({
  ...{ ...process.env, NO_PROXY: "127.0.0.1", no_proxy: "127.0.0.1" },
  ...{ npm_config_registry: url, npm_config_fetch_retries: "0", npm_config_cache: join(folder, "npm-cache") },
  ...{ PIP_INDEX_URL: `${url}/simple`, PIP_FIND_LINKS: "", PIP_RETRIES: "0", PIP_NO_CACHE_DIR: "1" },
});

/** Plays the registries of npm and pip, with one package of each name whose record names the repository. */
async function startRegistries(repository: string | undefined) {
  const wheel = join(folder, "record.whl");
  const script = `
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as archive:
    info = "toolgate_client-0.1.0.dist-info/"
    metadata = "Metadata-Version: 2.1\\nName: toolgate-client\\nVersion: 0.1.0\\nProject-URL: Source, " + sys.argv[2]
    archive.writestr(info + "METADATA", metadata)
    archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any")
    archive.writestr(info + "RECORD", "")
`;
  await run("python3", ["-c", script, wheel, `${repository}`]);
  const record = { name: "toolgate", "dist-tags": { latest: "0.1.0" }, repository: { type: "git", url: repository } };
  const packument = { ...record, versions: { "0.1.0": { ...record, version: "0.1.0" } } };
  const link = (file: string) => `<a href="/${file}">${file}</a>`;
  const pages: Record<string, string | Buffer> = { "/simple/hatchling/": link("hatchling-1.0.0-py3-none-any.whl") };
  if (repository !== undefined)
    Object.assign(pages, {
      "/toolgate": JSON.stringify(packument),
      "/simple/toolgate-client/": link("toolgate_client-0.1.0-py3-none-any.whl"),
      "/toolgate_client-0.1.0-py3-none-any.whl": await readFile(wheel),
    });
  const server = createServer(({ url = "" }, response) => {
    const page = pages[url];
    const type = url.startsWith("/simple/") ? "text/html" : "application/json";
    response.writeHead(page === undefined ? 404 : 200, { "content-type": type }).end(page ?? "{}");
  }).listen(0, "127.0.0.1");
  onTestFinished(() => void server.close());
  await once(server, "listening");
  return registriesAt(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
}
