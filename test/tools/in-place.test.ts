import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, realpathSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, judgeBy, openTestWorkspace, type TestWorkspace } from "../../src/testing.ts";
import { createApplyPatch } from "../../src/tools/apply-patch.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createFileChanges } from "../../src/tools/fs/change-file.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";
import { createWrite } from "../../src/tools/write.ts";

const supervisor = createSupervisor({ replicaId: `in-place-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
const list = realpathSync(mkdtempSync(join(tmpdir(), "toolgate-test-")));
const wanted = { profile: "workspace-write", network: "none" } as const;
const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [], mountPoints: list });
const bash = createBash({ supervisor, sandbox, pipes });
const changes = createFileChanges(sandbox);
const write = createWrite({ changes });
const applyPatch = createApplyPatch({ changes });
let site: TestWorkspace;
beforeAll(async () => {
  site = await openTestWorkspace();
  site.judge = judgeBy({ read: { "*": "allow", "*.env": "deny" } });
});
beforeEach(() => {
  for (const name of ["go", "started", "a.env"]) rmSync(place(name), { force: true });
  put(".env", "OLD");
  put(".npmrc", "OLD");
});
afterAll(async () => {
  await site.remove();
  await supervisor.close();
  await pipes.close();
  sandbox.close();
  rmSync(list, { recursive: true });
});

const place = (name: string) => join(site.directory, name);
/** Writes a file that the session has read. */
function put(name: string, content: string): void {
  writeFileSync(place(name), `${content}\n`);
  site.reads.set(place(name), createHash("sha256").update(`${content}\n`).digest("hex"));
}
const contentOf = (name: string) => readFileSync(place(name), "utf8");
const inodeOf = (name: string) => statSync(place(name)).ino;

/** Runs a command that reads all files again and again while `work` is done, and returns what it has printed. */
async function whileReading(work: () => unknown): Promise<string> {
  const command = 'until [ -e go ]; do cat .env .toolgate-*; echo round; done; cat .env; echo X > .npmrc; echo "$?"';
  let started = false;
  const { written } = await callTool(
    site,
    bash,
    { command },
    {
      async onOutput(text) {
        if (started || !text.includes("round")) return;
        started = true;
        await work();
        writeFileSync(place("go"), "");
      },
    },
  );
  return written;
}

describe("a file that a running command must not read", () => {
  test.each([
    ["write", () => callTool(site, write, { filePath: ".env", content: "NEW\n" })],
    [
      "apply_patch",
      () =>
        callTool(site, applyPatch, {
          patchText: "*** Begin Patch\n*** Update File: .env\n@@\n-OLD\n+NEW\n*** End Patch",
        }),
    ],
  ])("stays hidden when %s saves it, since that keeps the file", async (_, save) => {
    const before = inodeOf(".env");
    const printed = await whileReading(save);
    expect([contentOf(".env"), inodeOf(".env")]).toEqual(["NEW\n", before]);
    expect(printed).toContain("Permission denied");
    expect(printed).not.toMatch(/OLD|NEW/);
  });

  test("control: saved by renaming, its new content can be read", async () => {
    const printed = await whileReading(() => {
      writeFileSync(place("a.env"), "NEW\n");
      renameSync(place("a.env"), place(".env"));
    });
    expect(printed).toContain("NEW");
  });
});

test("a file that a running command must not change stays read-only when a tool saves it", async () => {
  const before = inodeOf(".npmrc");
  const printed = await whileReading(() => callTool(site, write, { filePath: ".npmrc", content: "NEW\n" }));
  expect([contentOf(".npmrc"), inodeOf(".npmrc")]).toEqual(["NEW\n", before]);
  expect(printed).toMatch(/\.npmrc: Read-only file system\n1\n$/);
});

test("a shorter and a longer version are whole, and one that changed meanwhile is not overwritten", async () => {
  await whileReading(async () => {
    for (const content of ["a much longer version\n", "s\n"]) {
      await callTool(site, write, { filePath: ".npmrc", content });
      expect(contentOf(".npmrc")).toBe(content);
    }
    const call = callTool(site, write, { filePath: ".npmrc", content: "NEW\n" });
    writeFileSync(place(".npmrc"), "by a person\n");
    await expect(call).rejects.toThrow();
  });
  expect(contentOf(".npmrc")).toBe("by a person\n");
});

test("where no command covers a file, it is replaced in one step", async () => {
  const before = inodeOf(".env");
  await callTool(site, write, { filePath: ".env", content: "NEW\n" });
  expect(inodeOf(".env")).not.toBe(before);
});
