import { execFileSync } from "node:child_process";
import { link, mkdir, rename, rm, symlink, utimes, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { callTool, judgeBy, openTestWorkspace, planCall, type TestWorkspace } from "../../src/testing.ts";
import { ChangedAfterApproval } from "../../src/tool/errors.ts";
import { glob } from "../../src/tools/glob.ts";
import { grep } from "../../src/tools/grep.ts";
import { listTool } from "../../src/tools/list.ts";
import { readTool } from "../../src/tools/read.ts";

let site: TestWorkspace;
beforeEach(async () => {
  site = await openTestWorkspace();
  // As a service has it without any configuration.
  site.judge = judgeBy({});
});
afterEach(() => site.remove());

const at = (name: string) => join(site.directory, name);
/** Writes files, each a second newer than the one before. */
async function put(files: Record<string, string>): Promise<void> {
  for (const [i, [name, content]] of Object.entries(files).entries()) {
    await mkdir(dirname(at(name)), { recursive: true });
    await writeFile(at(name), content);
    await utimes(at(name), 1_000 + i, 1_000 + i);
  }
}
const find = async (pattern: string, rest = {}) => await callTool(site, glob, { pattern, ...rest });
const search = async (pattern: string, rest = {}) => await callTool(site, grep, { pattern, ...rest });

test("no search finds temporary files of writes", async () => {
  await put({ ".toolgate-0b0e3f6c-6a3c-4f5e-9d0a-1c2d3e4f5a6b": "x\n", ".toolgate-notes": "x\n" });
  expect((await find(".toolgate-*")).output).toBe(".toolgate-notes");
  expect((await search("x")).output).toBe("Found 1 match\n.toolgate-notes:\n  Line 1: x");
  expect((await callTool(site, listTool, {})).output).toBe(`${site.directory}/\n  .toolgate-notes`);
});

test("a name with a line end is found and shown on one line", async () => {
  await put({ "a\n  Line 1: b.txt": "needle\n" });
  const quoted = '"a\\n  Line 1: b.txt"';
  expect((await find("*.txt")).output).toBe(quoted);
  expect((await search("needle")).output).toBe(`Found 1 match\n${quoted}:\n  Line 1: needle`);
  expect((await search("needle", { show: "count" })).output).toBe(`Found 1 file\n${quoted}: 1`);
  expect((await callTool(site, listTool, {})).output).toBe(`${site.directory}/\n  ${quoted}`);
  expect((await callTool(site, readTool, { filePath: "." })).output).toContain(`<entries>\n${quoted}\n`);
});

test("searches for names report the count of found files while they run", async () => {
  await put(Object.fromEntries(Array.from({ length: 1_100 }, (_, i) => [`${i}.txt`, ""])));
  for (const [tool, input] of [
    [glob, { pattern: "*.txt" }],
    [listTool, {}],
  ] as const) {
    const counts: unknown[] = [];
    await callTool(site, tool, input, { onMetadata: ({ count }) => counts.push(count) });
    expect(counts.slice(0, 2)).toEqual([1, 1_001]);
  }
});

test("searches for names and for text stop after 60 seconds, and say so", async () => {
  await put({ "a.txt": "needle\n" });
  const over = vi.spyOn(AbortSignal, "timeout").mockImplementation(() => AbortSignal.abort());
  onTestFinished(() => over.mockRestore());
  for (const result of [await find("*.txt"), await search("needle"), await search("needle", { path: "a.txt" })]) {
    expect(result.output).toContain("it took longer than 60 s");
    expect(result.metadata).toMatchObject({ truncated: true });
  }
  expect(over.mock.calls).toEqual([[60_000], [60_000], [60_000]]);
});

test("a search for text stops once it has found 10 MiB, and says so", async () => {
  site.outputs.set("out_1", Buffer.from("a needle in some hay\n".repeat(600_000)));
  const whole = { path: "toolgate-output:out_1", multiline: true };
  const { output, metadata } = await search("a needle.+hay", whole);
  expect(output).toContain("it found more than 10 MiB");
  expect(metadata).toMatchObject({ truncated: true });
});

describe("glob", () => {
  test("finds files by name, the newest first", async () => {
    await put({ "old.ts": "", "src/mid.ts": "", "src/deep/new.ts": "", "other.md": "" });
    expect((await find("*.ts")).output).toBe("src/deep/new.ts\nsrc/mid.ts\nold.ts");
    expect((await find("src/*.ts")).output).toBe("src/mid.ts");
    expect((await find("{src/deep,.}/*.{ts,md}")).output).toBe("other.md\nsrc/deep/new.ts\nold.ts");
    expect((await find("*.ts", { path: "src" })).output).toBe("src/deep/new.ts\nsrc/mid.ts");
    expect((await find("*.rs")).output).toBe("No files found");
  });

  test("shows the newest 100 of all files, not the first ones found", async () => {
    await put(Object.fromEntries(Array.from({ length: 120 }, (_, i) => [`d${i % 7}/f${i}.txt`, ""])));
    const { output = "", metadata } = await find("*.txt");
    const lines = output.split("\n");
    expect(lines.slice(0, 2)).toEqual([`d${119 % 7}/f119.txt`, `d${118 % 7}/f118.txt`]);
    expect(lines[99]).toBe(`d${20 % 7}/f20.txt`);
    expect(lines.slice(100)).toEqual([
      "",
      "(Results are truncated: showing the newest 100 of 120. Consider using a more specific path or pattern.)",
    ]);
    expect(metadata).toMatchObject({ count: 100, total: 120, truncated: true });
  });

  test("leaves out files that git ignores, whatever the pattern, and shows hidden ones", async () => {
    await put({ ".gitignore": "*.log\nbuilt/\n", "a.log": "", "built/b.ts": "", ".hidden/c.ts": "", "src/d.log": "" });
    expect((await find("**/*")).output).toBe(".hidden/c.ts\n.gitignore");
    expect((await find("*.log")).output).toBe("No files found");
    expect((await find("src/*.log")).output).toBe("No files found");
  });

  test("leaves out files that may not be read without an ask, and counts them", async () => {
    await put({ ".env": "", "a/.env.local": "", "a/.env.example": "", "a/b": "" });
    const { output, metadata } = await find("**/*");
    expect(output).toBe(
      "a/b\na/.env.example\n\n(2 files are left out, because reading needs approval. Use the read tool to ask for it.)",
    );
    expect(metadata).toMatchObject({ leftOut: 2 });
  });

  test.each([
    ["a pattern that climbs out", { pattern: "../*.pem" }],
    ["braces that climb out", { pattern: "{..,src}/*.pem" }],
    ["an absolute pattern", { pattern: "/etc/*" }],
    ["a pattern of the home folder", { pattern: "~/*" }],
    ["a link", { pattern: "link/*" }],
    ["a path", { pattern: "*", path: "../other" }],
    ["a path and a pattern", { pattern: "../../*", path: "src" }],
  ])("asks for the directory outside to which %s leads", async (_, input) => {
    await symlink(site.outside, at("link"));
    const { plan } = await planCall(site, glob, input);
    expect(plan.asks.map(({ permission }) => permission)).toContain("external_directory");
    expect(plan.asks.at(-1)).toMatchObject({ permission: "glob", patterns: [input.pattern] });
  });

  test("inside asks only for the pattern", async () => {
    const { plan } = await planCall(site, glob, { pattern: "{src,test/..}/**/*.ts" });
    expect(plan.asks).toMatchObject([
      { permission: "glob", patterns: ["{src,test/..}/**/*.ts"], paths: [site.directory] },
    ]);
  });

  test("does not follow links", async () => {
    await writeFile(join(site.outside, "secret"), "");
    await symlink(site.outside, at("link"));
    expect((await find("**/secret")).output).toBe("No files found");
  });

  test("fails before an ask if the path is not a directory", async () => {
    await put({ "a.txt": "" });
    const { plan } = await planCall(site, glob, { pattern: "*", path: "a.txt" });
    await expect(plan.inspect?.()).rejects.toThrow(`glob path must be a directory: ${at("a.txt")}`);
  });

  test("approved for a directory does not cover a link that replaces it", async () => {
    await mkdir(at("folder"));
    await writeFile(join(site.outside, "secret"), "");
    const call = await planCall(site, glob, { pattern: "*", path: "folder" });
    await rm(at("folder"), { recursive: true });
    await symlink(site.outside, at("folder"));
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);
  });
});

describe("grep", () => {
  test("shows numbered matching lines, newest files first", async () => {
    await put({ "a.ts": "one\ntwo\none\n", "src/b.ts": "\tone more\r\n", "c.md": "nothing" });
    const { output, metadata } = await search("one");
    expect(output).toBe(
      ["Found 3 matches", "src/b.ts:", "  Line 1: \tone more", "", "a.ts:", "  Line 1: one", "  Line 3: one"].join(
        "\n",
      ),
    );
    expect(metadata).toMatchObject({ matches: 3, truncated: false });
    expect((await search("^never$")).output).toBe("No files found");
  });

  test("shows lines around a match", async () => {
    await put({ "a.txt": "1\n2\n3\n4\n5\n6\n7\n8\n9\n" });
    const { output } = await search("[28]", { context: 1 });
    expect(output).toBe(
      [
        "Found 2 matches",
        "a.txt:",
        "  Line 1- 1",
        "  Line 2: 2",
        "  Line 3- 3",
        "  --",
        "  Line 7- 7",
        "  Line 8: 8",
        "  Line 9- 9",
      ].join("\n"),
    );
  });

  test("accepts a glob of files to search, and still leaves out files that git ignores", async () => {
    await put({
      ".gitignore": "ignored.ts\n",
      "a.ts": "x",
      "src/b.tsx": "x",
      "src/c/d.ts": "x",
      "e.md": "x",
      "ignored.ts": "x",
    });
    const files = async (include: string) => (await search("x", { include, show: "files" })).output;
    expect(await files("*.ts")).toBe("Found 2 files\nsrc/c/d.ts\na.ts");
    expect(await files("src/**/*.{ts,tsx}")).toBe("Found 2 files\nsrc/c/d.ts\nsrc/b.tsx");
    await expect(search("x", { include: "../*.ts" })).rejects.toThrow("leads out of the directory");
  });

  test("counts, by file", async () => {
    await put({ "a.txt": "x\nx\ny\n", "b.txt": "x\n" });
    expect((await search("x", { show: "count" })).output).toBe("Found 2 files\nb.txt: 1\na.txt: 2");
  });

  test("finds matches across lines if asked to", async () => {
    await put({ "a.txt": "begin\nmiddle\nend\n" });
    expect((await search("begin.*end")).output).toBe("No files found");
    expect((await search("begin.*end", { multiline: true })).output).toContain(
      "  Line 1: begin\n  Line 2: middle\n  Line 3: end",
    );
  });

  test("shows at most 100 lines, of the newest files, with the total", async () => {
    await put({ "old.txt": "x\n".repeat(50), "new.txt": "x\n".repeat(80) });
    const { output = "", metadata } = await search("x");
    expect(output).toMatch(/^Found 130 matches, the first 100 of the files modified last are shown\nnew\.txt:\n/);
    expect(output.match(/ {2}Line /g)).toHaveLength(100);
    expect(output.split("old.txt:\n")[1]?.match(/ {2}Line /g)).toHaveLength(20);
    expect(metadata).toMatchObject({ matches: 130, truncated: true });
  });

  test("truncates long lines", async () => {
    await put({ "a.min.js": `needle${"x".repeat(100_000)}` });
    expect(((await search("needle")).output ?? "").length).toBeLessThan(2_200);
  });

  test("leaves out files that may not be read without an ask, by any of their names, and counts them", async () => {
    await put({ ".env": "KEY=1", "a.txt": "KEY=2" });
    await link(at(".env"), at("innocent.txt"));
    const { output, metadata } = await search("KEY");
    expect(output).toBe(
      "Found 1 match\na.txt:\n  Line 1: KEY=2\n\n(2 files are left out, because reading needs approval. Use the read tool to ask for it.)",
    );
    expect(metadata).toMatchObject({ leftOut: 2 });
    await rm(at("innocent.txt"));
    // Matches in them must not be revealed either.
    for (const guess of ["KEY=1", "KEY=7"]) {
      expect((await search(guess)).output).toBe(
        "No files found\n\n(1 file is left out, because reading needs approval. Use the read tool to ask for it.)",
      );
    }
    expect((await search("KEY", { path: ".env" })).output).toContain("(1 file is left out");
    expect((await search("KEY", { path: ".env" })).output).not.toContain("KEY=1");
  });

  test("reports the count of found files while it runs", async () => {
    await put(Object.fromEntries(Array.from({ length: 250 }, (_, i) => [`${i}.txt`, "needle\n"])));
    const counts: unknown[] = [];
    await callTool(site, grep, { pattern: "needle" }, { onMetadata: ({ files }) => counts.push(files) });
    expect(counts).toEqual([100, 200]);
  });

  test("explains an invalid pattern", async () => {
    await expect(search("a(b")).rejects.toThrow(/not a regular expression .*unclosed group.*Escape characters/s);
  });

  test("searches one file, and an output of an earlier call", async () => {
    await put({ "a.txt": "one\ntwo\n" });
    expect((await search("two", { path: "a.txt" })).output).toBe("Found 1 match\na.txt:\n  Line 2: two");
    site.outputs.set("out_1", Buffer.from(`${"line\n".repeat(100_000)}needle\n`));
    const call = await planCall(site, grep, { pattern: "needle", path: "toolgate-output:out_1" });
    expect(call.plan.asks).toEqual([]);
    expect((await call.run()).output).toBe("Found 1 match\ntoolgate-output:out_1:\n  Line 100001: needle");
    await expect(search("x", { path: "toolgate-output:../x" })).rejects.toThrow("There is no stored output");
    await expect(search("x", { path: "none" })).rejects.toThrow(`Search path not found: ${at("none")}`);
  });

  test("outside the workspace also asks for the directory", async () => {
    const { plan } = await planCall(site, grep, { pattern: "KEY", path: "../other" });
    expect(plan.asks).toMatchObject([
      { permission: "external_directory", patterns: [`${site.outside}/*`] },
      { permission: "grep", patterns: ["KEY"], paths: [site.outside] },
    ]);
  });

  test("a pattern that makes other engines backtrack forever ends at once", async () => {
    await put({ "redos.txt": `${"a".repeat(5_000)}!` });
    expect((await search("(a+)+$", { path: "redos.txt" })).output).toBe("No files found");
    expect((await search("^(a|a)*$")).output).toBe("No files found");
  });

  test("approved for a file does not cover a link that replaces it", async () => {
    await put({ "a.txt": "x" });
    await writeFile(join(site.outside, "secret"), "x");
    const call = await planCall(site, grep, { pattern: "x", path: "a.txt" });
    await rename(at("a.txt"), at("b.txt"));
    await symlink(join(site.outside, "secret"), at("a.txt"));
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);
  });

  test("stops when the call is cancelled", async () => {
    const stop = new AbortController();
    stop.abort(new Error("enough"));
    await put({ "a.txt": "x" });
    await expect(callTool(site, grep, { pattern: "x" }, { signal: stop.signal })).rejects.toThrow("enough");
  });

  test("is not held up by a pipe", async () => {
    execFileSync("mkfifo", [at("pipe")]);
    await put({ "a.txt": "x" });
    expect((await search("x")).output).toContain("a.txt");
    await expect(search("x", { path: "pipe" })).rejects.toThrow("neither a file nor a directory");
  });
});

describe("list", () => {
  test("shows files as a tree, without ignored and restricted ones", async () => {
    await put({
      ".gitignore": "*.log",
      "a.log": "",
      "src/deep/x.ts": "",
      "src/a.ts": "",
      "node_modules/m/i.js": "",
      ".env": "",
    });
    const { output, metadata } = await callTool(site, listTool, {});
    expect(output).toBe(
      [
        `${site.directory}/`,
        "  .gitignore",
        "  src/",
        "    a.ts",
        "    deep/",
        "      x.ts",
        "",
        "(1 file is left out, because reading needs approval. Use the read tool to ask for it.)",
      ].join("\n"),
    );
    expect(metadata).toMatchObject({ count: 3, total: 3, truncated: false });
    expect((await callTool(site, listTool, { path: "src", ignore: ["deep"] })).output).toBe(`${at("src")}/\n  a.ts`);
  });

  test("asks for the directory", async () => {
    const { plan } = await planCall(site, listTool, { path: "../other" });
    expect(plan.asks.map(({ permission }) => permission)).toEqual(["external_directory", "list"]);
    await expect(callTool(site, listTool, { path: "none" })).rejects.toThrow("list path must be a directory");
  });
});
