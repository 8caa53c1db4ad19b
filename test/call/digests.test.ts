import { mkdir, mkdtemp, realpath, rename, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import * as z from "zod";
import { createFileHashes } from "../../src/call/bound-files.ts";
import { approvalDigest } from "../../src/call/digests.ts";
import { boundTool, defineTool } from "../../src/tool/define-tool.ts";
import type { Plan } from "../../src/tool/tool.ts";
import { openWorkspace } from "../../src/tool/workspace.ts";

let directory: string;
beforeAll(async () => {
  directory = await realpath(await mkdtemp(join(tmpdir(), "toolgate-digest-")));
  await mkdir(join(directory, "cwd"));
  await mkdir(join(directory, "other"));
  await writeFile(join(directory, "bound"), "one\n");
});
afterAll(() => rm(directory, { recursive: true }));

const deploy = (version: string) =>
  defineTool({
    name: "deploy",
    description: "Deploys.",
    version,
    input: z.object({}),
    plan: () => ({ title: "deploy", asks: [] }),
    execute: () => ({ output: "deployed" }),
  });

/** Digest of one plan, after some of what it is bound to was replaced. */
async function digest({ policy = "p1", version = "1", input = { to: "staging" }, at = ".", plan = {} } = {}) {
  const planned: Plan = {
    title: "deploy",
    asks: [{ permission: "bash", patterns: ["make"] }],
    binds: [{ absolute: join(directory, "bound") }],
    cwd: join(directory, "cwd"),
    env: { TO: "staging" },
    ...plan,
  };
  const parts = { hashes: createFileHashes(), policyDigest: () => policy };
  const workspace = await openWorkspace("default", join(directory, at));
  const files: Record<string, string> = {};
  for (const { absolute } of planned.binds ?? []) files[absolute] = (await createFileHashes().of(absolute)).sha256;
  const bound = async () => ({ files, code: {}, shown: [], texts: [], missing: [], targets: [] });
  const decision = { plan: planned, bound };
  return await approvalDigest(parts, boundTool(deploy(version)), input, decision, { workspace });
}

test("an equal plan has an equal digest, whatever its title says", async () => {
  expect(await digest()).toBe(await digest({ plan: { title: "other" } }));
});

test.each<[string, () => Promise<string>]>([
  ["the definition of the tool", () => digest({ version: "2" })],
  ["the input", () => digest({ input: { to: "production" } })],
  ["the workspace", () => digest({ at: "other" })],
  ["the working directory", () => digest({ plan: { cwd: join(directory, "other") } })],
  [
    "the directory of that name",
    async () => {
      await rename(join(directory, "cwd"), join(directory, "was"));
      await mkdir(join(directory, "cwd"));
      return await digest();
    },
  ],
  ["the environment", () => digest({ plan: { env: { TO: "production" } } })],
  [
    "the content of a bound file",
    async () => {
      await writeFile(join(directory, "bound"), "two\n");
      return await digest();
    },
  ],
  ["the files that are bound", () => digest({ plan: { binds: [] } })],
  ["a permission that is asked", () => digest({ plan: { asks: [{ permission: "edit", patterns: ["make"] }] } })],
  ["a pattern that is asked", () => digest({ plan: { asks: [{ permission: "bash", patterns: ["make x"] }] } })],
  ["the rules", () => digest({ policy: "p2" })],
])("an approval is bound to %s", async (_, changed) => {
  const before = await digest();
  expect(await changed()).not.toBe(before);
});

test("a file that is too large to hash is identified by its metadata", async () => {
  const huge = join(directory, "huge");
  await writeFile(huge, "");
  await truncate(huge, 2 ** 40);
  const before = await createFileHashes().of(huge);
  expect(before).toMatchObject({ bytes: 2 ** 40, sha256: expect.stringContaining("too large to read") });
  await truncate(huge, 2 ** 40 + 1);
  expect((await createFileHashes().of(huge)).sha256).not.toBe(before.sha256);
});
