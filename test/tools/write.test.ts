import { chmod, link, mkdir, readdir, readFile, rename, stat, symlink, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { callTool, openTestWorkspace, planCall, type TestWorkspace } from "../../src/testing.ts";
import { boundTool } from "../../src/tool/define-tool.ts";
import { ChangedAfterApproval, ToolFailure } from "../../src/tool/errors.ts";
import { createFileChanges } from "../../src/tools/fs/change-file.ts";
import { readTool } from "../../src/tools/read.ts";
import { createWrite } from "../../src/tools/write.ts";

const write = createWrite({ changes: createFileChanges() });
let site: TestWorkspace;
beforeEach(async () => {
  site = await openTestWorkspace();
});
afterEach(() => site.remove());

const at = (name: string) => join(site.directory, name);
const put = (filePath: string, content: string) => callTool(site, write, { filePath, content });
const show = (filePath: string) => callTool(site, readTool, { filePath });
const text = (name: string) => readFile(at(name), "utf8");

describe("a new file", () => {
  test("is written with its directories, and may then be overwritten", async () => {
    const { output, metadata } = await put("a/b/c.txt", "one\ntwo\n");
    expect(output).toBe("Wrote file successfully.");
    expect(metadata).toMatchObject({ filepath: at("a/b/c.txt"), exists: false, additions: 2, deletions: 0 });
    expect(await text("a/b/c.txt")).toBe("one\ntwo\n");
    expect((await put("a/b/c.txt", "one\n")).metadata).toMatchObject({ exists: true, additions: 0, deletions: 1 });
    expect(await readdir(at("a/b"))).toEqual(["c.txt"]);
  });

  test("gets the mode that the process gives new files", async () => {
    await put("a", "");
    await writeFile(at("b"), "");
    expect((await stat(at("a"))).mode).toBe((await stat(at("b"))).mode);
  });

  test("asks for edit, and outside the workspace for its directory", async () => {
    const { plan } = await planCall(site, write, { filePath: "../other/a", content: "" });
    const absolute = join(site.outside, "a");
    expect(plan.asks).toMatchObject([
      { permission: "external_directory", patterns: [`${site.outside}/*`] },
      { permission: "edit", patterns: [absolute], paths: [absolute], metadata: { filepath: absolute } },
    ]);
    expect(plan.binds).toMatchObject([{ absolute }]);
  });
});

describe("an existing file", () => {
  beforeEach(() => writeFile(at("a.txt"), "one\ntwo\n"));

  test("that was not read is not overwritten, and nothing is asked", async () => {
    const call = await planCall(site, write, { filePath: "a.txt", content: "new" });
    const failure = new ToolFailure(
      `You must read the file ${at("a.txt")} before overwriting it. Use the Read tool first`,
    );
    await expect(call.plan.inspect?.()).rejects.toThrow(failure);
    await expect(call.run()).rejects.toThrow(failure);
    expect(await text("a.txt")).toBe("one\ntwo\n");
  });

  test("that was modified since it was read is not overwritten, though its times look the same", async () => {
    await show("a.txt");
    const { mtime, atime } = await stat(at("a.txt"));
    await writeFile(at("a.txt"), "one\nTWO\n");
    await utimes(at("a.txt"), atime, mtime);
    await expect(put("a.txt", "new")).rejects.toThrow("has been modified since it was last read");
    await show("a.txt");
    await put("a.txt", "new");
    expect(await text("a.txt")).toBe("new");
  });

  test("is shown as a diff before anyone is asked", async () => {
    await show("a.txt");
    const { plan } = await planCall(site, write, { filePath: "a.txt", content: "one\n2\n" });
    const inspected = await plan.inspect?.();
    expect(inspected?.preview?.()).toEqual({
      diff: "--- a.txt\n+++ a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n",
      paths: ["a.txt"],
      additions: 1,
      deletions: 1,
    });
    expect(await text("a.txt")).toBe("one\ntwo\n");
  });

  test("that changes between inspection and run is not overwritten", async () => {
    await show("a.txt");
    const call = await planCall(site, write, { filePath: "a.txt", content: "new" });
    await call.plan.inspect?.();
    await writeFile(at("a.txt"), "theirs");
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);
    expect(await text("a.txt")).toBe("theirs");
  });

  test("preserves its mode", async () => {
    await chmod(at("a.txt"), 0o751);
    await show("a.txt");
    await put("a.txt", "new");
    expect((await stat(at("a.txt"))).mode & 0o7777).toBe(0o751);
  });

  test("preserves its byte order mark, without adding a second one", async () => {
    await writeFile(at("a.txt"), "\uFEFFone");
    await show("a.txt");
    await put("a.txt", "two");
    expect(await text("a.txt")).toBe("\uFEFFtwo");
    await put("a.txt", "\uFEFFthree");
    expect(await text("a.txt")).toBe("\uFEFFthree");
  });

  test("that has other names is refused", async () => {
    await show("a.txt");
    await link(at("a.txt"), at("b.txt"));
    await expect(put("a.txt", "new")).rejects.toThrow("hard links");
    expect(await text("b.txt")).toBe("one\ntwo\n");
  });

  test("of any size shows the whole change, with its counts", async () => {
    await writeFile(at("a.txt"), "line\n".repeat(300_000));
    await show("a.txt");
    const { plan } = await planCall(site, write, { filePath: "a.txt", content: "new" });
    const inspected = await plan.inspect?.();
    const preview = inspected?.preview?.();
    expect(preview).toMatchObject({ additions: 1, deletions: 300_000 });
    expect(preview?.diff?.match(/^-line$/gm)).toHaveLength(300_000);
    expect(preview?.diff).toContain("\n+new\n");
  });
});

test("a long diff is truncated in the metadata", async () => {
  const { metadata } = await put("a.txt", "line\n".repeat(10_000));
  expect(metadata).toMatchObject({ additions: 10_000 });
  expect(JSON.stringify(metadata).length).toBeLessThan(25_000);
  expect(metadata?.diff).toMatch(/\(The diff is cut: it has 60\d{3} bytes\.\)$/);
});

test("a directory and a path below a file are refused", async () => {
  await mkdir(at("folder"));
  await expect(put("folder", "x")).rejects.toThrow("is a directory, not a file");
  await writeFile(at("file"), "");
  await expect(put("file/below", "x")).rejects.toThrow(ToolFailure);
});

test("of concurrent writes that saw the same version exactly one wins, and the others change nothing", async () => {
  const planned = await Promise.all(
    ["1", "2", "3", "4"].map((content) => planCall(site, write, { filePath: "new", content })),
  );
  for (const call of planned) await call.plan.inspect?.();
  const results = await Promise.allSettled(planned.map((call) => call.run()));
  const won = results.findIndex(({ status }) => status === "fulfilled");
  expect(await text("new")).toBe(String(won + 1));
  const lost = results.flatMap((result) => (result.status === "rejected" ? [result.reason] : []));
  expect(lost).toHaveLength(3);
  for (const error of lost) expect(error).toBeInstanceOf(ChangedAfterApproval);
  expect(await readdir(site.directory)).toEqual(["new"]);
});

test("the temporary file of a killed write is removed by a later write in its directory, unless it is young", async () => {
  const left = ".toolgate-0b0e3f6c-6a3c-4f5e-9d0a-1c2d3e4f5a6b";
  const unrelated = [".toolgate-removed-0b0e3f6c-6a3c-4f5e-9d0a-1c2d3e4f5a6b", ".toolgate-notes"];
  for (const name of [left, ...unrelated]) await writeFile(at(name), "half");
  await put("a", "");
  expect(await readdir(site.directory)).toEqual([left, ...unrelated, "a"].toSorted());
  const later = createFileChanges({ now: () => Date.now() + 3_600_000 });
  await callTool(site, createWrite({ changes: later }), { filePath: "b", content: "" });
  expect(await readdir(site.directory)).toEqual([...unrelated, "a", "b"].toSorted());
});

describe("a link", () => {
  test("that dangles is written at its target, which was asked for", async () => {
    await symlink("../other/target", at("dangling"));
    const call = await planCall(site, write, { filePath: "dangling", content: "x" });
    expect(call.plan.asks[1]?.patterns).toEqual([join(site.outside, "target")]);
    await call.run();
    expect(await readFile(join(site.outside, "target"), "utf8")).toBe("x");
  });

  test("that replaces the directory after the approval is not followed", async () => {
    await mkdir(at("folder"));
    const call = await planCall(site, write, { filePath: "folder/a", content: "x" });
    await call.plan.inspect?.();
    await rename(at("folder"), at("moved"));
    await symlink(site.outside, at("folder"));
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);
    expect(await readdir(site.outside)).toEqual([]);
  });

  test("that replaces a directory in which others would be created is not followed", async () => {
    await mkdir(at("folder"));
    const call = await planCall(site, write, { filePath: "folder/b/c/a", content: "x" });
    await call.plan.inspect?.();
    await rename(at("folder"), at("moved"));
    await symlink(site.outside, at("folder"));
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);
    expect(await readdir(site.outside)).toEqual([]);
  });

  test("that replaces the file after the approval is not followed", async () => {
    const call = await planCall(site, write, { filePath: "a", content: "x" });
    await call.plan.inspect?.();
    await symlink(join(site.outside, "target"), at("a"));
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);
    expect(await readdir(site.outside)).toEqual([]);
  });
});

test("an invalid input is named by field", () => {
  expect(() => boundTool(write).decode({ filePath: "", content: 1 })).toThrow(/- filePath: .*\n- content: /);
});
