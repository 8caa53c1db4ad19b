import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { expect, inject, test } from "vitest";

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
