import { execFileSync, spawnSync } from "node:child_process";
import { chmod, readdir, readFile, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { callTool, openTestWorkspace, planCall, type TestWorkspace } from "../../src/testing.ts";
import { boundTool } from "../../src/tool/define-tool.ts";
import { ChangedAfterApproval, InvalidInput, ToolFailure } from "../../src/tool/errors.ts";
import { type Chunk, parsePatch } from "../../src/tools/apply-patch/parse-patch.ts";
import { applyChunks } from "../../src/tools/apply-patch/verify-patch.ts";
import { createApplyPatch } from "../../src/tools/apply-patch.ts";
import { createFileChanges } from "../../src/tools/fs/change-file.ts";
import { readTool } from "../../src/tools/read.ts";

const applyPatch = createApplyPatch({ changes: createFileChanges() });
let site: TestWorkspace;
beforeEach(async () => {
  site = await openTestWorkspace();
});
afterEach(() => site.remove());

const at = (name: string) => join(site.directory, name);
const content = (name: string) => readFile(at(name), "utf8");
async function given(files: Record<string, string>): Promise<void> {
  for (const [name, text] of Object.entries(files)) {
    await writeFile(at(name), text);
    await callTool(site, readTool, { filePath: name });
  }
}
const patchOf = (...lines: string[]) => ["*** Begin Patch", ...lines, "*** End Patch"].join("\n");
const apply = (...lines: string[]) => callTool(site, applyPatch, { patchText: patchOf(...lines) });

describe("a patch", () => {
  test("adds, changes, moves and deletes files, after a preview", async () => {
    await given({ a: "one\ntwo\nthree\n", b: "old name\n", c: "gone\n" });
    await chmod(at("b"), 0o755);
    await callTool(site, readTool, { filePath: "b" });
    const patchText = patchOf(
      ...["*** Add File: sub/new", "+first", "+second"],
      ...["*** Update File: a", "@@", " one", "-two", "+2", " three"],
      ...["*** Update File: b", "*** Move to: moved/b", "@@", "-old name", "+new name"],
      "*** Delete File: c",
    );
    const call = await planCall(site, applyPatch, { patchText });
    const patterns = ["sub/new", "a", "b", "moved/b", "c"];
    expect(call.plan.asks).toMatchObject([{ permission: "edit", patterns, paths: patterns.map(at) }]);
    expect(call.plan.binds?.map(({ absolute }) => absolute)).toEqual(patterns.map(at));
    expect((await call.plan.inspect?.())?.preview?.().diff).toContain("@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n");
    const { output, metadata } = await call.run();
    expect(output).toBe("Success. Updated the following files:\nA sub/new\nM a\nM b -> moved/b\nD c");
    expect(metadata).toMatchObject({ additions: 4, deletions: 3 });
    expect(await content("sub/new")).toBe("first\nsecond\n");
    expect(await content("a")).toBe("one\n2\nthree\n");
    expect(await content("moved/b")).toBe("new name\n");
    expect((await stat(at("moved/b"))).mode & 0o777).toBe(0o755);
    expect((await readdir(site.directory)).toSorted()).toEqual(["a", "moved", "sub"]);
    await apply("*** Update File: a", "@@", "-2", "+zwei");
    expect(await content("a")).toBe("one\nzwei\nthree\n");
  });

  test("asks once for all directories outside the workspace, including that of a move's target", async () => {
    const patchText = patchOf(
      ...[`*** Add File: ${site.outside}/a`, "+x"],
      ...["*** Update File: b", `*** Move to: ${site.outside}/sub/b`],
    );
    const { plan } = await planCall(site, applyPatch, { patchText });
    expect(plan.asks).toMatchObject([
      { permission: "external_directory", patterns: [`${site.outside}/*`, `${site.outside}/sub/*`] },
      { permission: "edit", patterns: [`${site.outside}/a`, "b", `${site.outside}/sub/b`] },
    ]);
  });

  test("with a part that does not fit changes nothing and lists all errors", async () => {
    await given({ a: "one\n", b: "two\n", c: "three\n" });
    await writeFile(at("unread"), "four\n");
    const patch = [
      ...["*** Update File: a", "@@", "-one", "+1"],
      ...["*** Update File: b", "@@", "-2", "+zwei"],
      ...["*** Add File: c", "+x"],
      ...["*** Update File: missing", "@@", "-x"],
      ...["*** Update File: unread", "@@", "-four"],
    ];
    const refused = apply(...patch);
    await expect(refused).rejects.toThrow(ToolFailure);
    for (const message of [
      "verification failed, and nothing was changed",
      `Failed to find expected lines in ${at("b")}:\n2`,
      `${at("c")} exists already`,
      `File not found: ${at("missing")}`,
      `You must read the file ${at("unread")}`,
    ])
      await expect(refused).rejects.toThrow(message);
    expect(await content("a")).toBe("one\n");
  });

  test("changes the last line of a file of 200,000 lines", async () => {
    const lines = Array.from({ length: 200_000 }, (_, i) => `line ${i}\n`).join("");
    await given({ long: lines });
    await apply("*** Update File: long", "@@", "-line 199999", "+the last line");
    expect(await content("long")).toBe(lines.replace("line 199999\n", "the last line\n"));
  });

  test("is refused for a file of too many lines, and if its chunks take too long to find", async () => {
    await given({ many: "\n".repeat(16_000_000) });
    await expect(apply("*** Update File: many", "@@", "-x", "+y")).rejects.toThrow("has over 1000000 lines");
    await given({ long: `${"x\n".repeat(300_000)}end\n` });
    const contexts = Array.from({ length: 1_000 }, () => "@@ x");
    await expect(apply("*** Update File: long", ...contexts, "-end", "+y")).rejects.toThrow("takes too long");
  });

  test("reads each of many sections once", async () => {
    const sections = Array.from({ length: 40_000 }, (_, i) => `*** Delete File: ${i}`);
    expect(parsePatch(patchOf(...sections))).toHaveLength(40_000);
  });

  test("is undone if a write fails", async () => {
    await given({ a: "one\n", b: "two\n", c: "three\n", file: "" });
    const before = await readdir(site.directory);
    const refused = apply(
      ...["*** Update File: a", "@@", "-one", "+1"],
      ...["*** Update File: b", "*** Move to: folder/b", "@@", "-two", "+2"],
      "*** Delete File: c",
      ...["*** Add File: new", "+x"],
      ...["*** Add File: file/below", "+x"],
    );
    await expect(refused).rejects.toThrow(`Cannot write ${at("file/below")}`);
    expect(await Promise.all(["a", "b", "c"].map(content))).toEqual(["one\n", "two\n", "three\n"]);
    expect((await readdir(site.directory)).filter((name) => name !== "folder")).toEqual(before);
    expect(await readdir(at("folder"))).toEqual([]);
  });

  test("changes nothing if a file has changed since the approval", async () => {
    await given({ a: "one\n", b: "two\n" });
    const patchText = patchOf(
      ...["*** Update File: b", "@@", "-two", "+2"],
      ...["*** Update File: a", "@@", "-one", "+1"],
    );
    const call = await planCall(site, applyPatch, { patchText });
    await call.plan.inspect?.();
    await writeFile(at("a"), "one\nmore\n");
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);
    expect(await content("b")).toBe("two\n");
  });

  test("is refused if it names a file twice", async () => {
    const patchText = patchOf(...["*** Add File: a", "+x"], ...["*** Delete File: ./sub/../a"]);
    await expect(planCall(site, applyPatch, { patchText })).rejects.toThrow(`names ${at("a")} twice`);
  });

  test.each([
    ["", "Too small"],
    ["@@", "*** Begin Patch"],
    [patchOf(), "empty patch"],
    [patchOf("nonsense"), 'line 2 of the patch is "nonsense"; there must be a line such as *** Update File: PATH'],
    [patchOf("*** Update File: a"), "no hunks found for a"],
    [patchOf("*** Update File: a", "@@", "text"), 'line 4 of the patch is "text"'],
    [patchOf("*** Add File: a", "text"), "a + before each line"],
  ])("is refused before any effect if it cannot be parsed: %#", (patchText, message) => {
    expect(() => boundTool(applyPatch).decode({ patchText })).toThrow(InvalidInput);
    expect(() => boundTool(applyPatch).decode({ patchText })).toThrow(message);
  });
});

const chunksOf = (...lines: string[]): Chunk[] => {
  const [file] = parsePatch(patchOf("*** Update File: a", ...lines));
  return file?.kind === "update" ? file.chunks : [];
};
const patched = (text: string, ...lines: string[]) => applyChunks("a", text, chunksOf(...lines)).text;

describe("a chunk", () => {
  test("that matches in several places is refused with their lines; @@ and a preceding line selects one", () => {
    const text = "def a():\n  return 1\ndef b():\n  return 1\n";
    expect(() => patched(text, "@@", "-  return 1", "+  return 2")).toThrow("occur 2 times in a, at lines 2, 4");
    expect(patched(text, "@@ def b():", "-  return 1", "+  return 2")).toBe(
      "def a():\n  return 1\ndef b():\n  return 2\n",
    );
    expect(() => patched(`${text}${text}`, "@@ def b():", "-  return 1", "+  return 2")).toThrow("at lines 4, 6, 8");
    expect(patched(text, "@@ -4 +4 @@ def b", "-  return 1", "+  return 2")).toMatch(/b\(\):\n {2}return 2\n$/);
  });

  test("that only adds goes after its context, or to the end", () => {
    expect(patched("a\nb\n", "@@ a", "+x")).toBe("a\nx\nb\n");
    expect(patched("a\nb\n", "@@", "+x")).toBe("a\nb\nx\n");
    expect(() => patched("a\na\n", "@@ a", "+x")).toThrow("more than once");
  });

  test("at the end of the file is not found elsewhere", () => {
    expect(patched("a\nb\na\n", "@@", "-a", "+x", "*** End of File")).toBe("a\nb\nx\n");
  });

  test("is found ignoring unintended differences, and leaves its context lines unchanged", () => {
    const { text, ignoring } = applyChunks("a", "say “hi”  \nold\n", chunksOf("@@", ' say "hi"', "-old", "+new"));
    expect(text).toBe("say “hi”  \nnew\n");
    expect(ignoring).toEqual(["typographic characters"]);
  });

  test("preserves line ends; new lines end like those around them", () => {
    expect(patched("a\r\nb\r\nc", "@@", " a", "-b", "+x", "+y")).toBe("a\r\nx\r\ny\r\nc");
    expect(patched("a\nb", "@@", " a", "-b", "+x")).toBe("a\nx\n");
    expect(patched("a\nb", "@@", " b", "+c")).toBe("a\nb\nc\n");
    expect(patched("a\n", "@@", "-a", "+b", "\\ No newline at end of file")).toBe("b");
  });

  test("out of order is refused with the line where it occurs", () => {
    expect(() => patched("a\nb\n", "@@", "-b", "@@", "-a")).toThrow(
      "They occur at line 1: give the chunks in the order",
    );
  });
});

describe("laws", () => {
  const line = fc.constantFrom("", " ", "a", "b", "a b", "  c", "-", "+d", "@@", "*** End Patch?", "é", "\\ x");
  const text = fc
    .tuple(fc.array(line, { maxLength: 25 }), fc.boolean())
    .map(([lines, closed]) => lines.join("\n") + (closed && lines.length > 0 ? "\n" : ""));

  /** The hunks of `git diff` between two texts. */
  async function gitDiff(before: string, after: string): Promise<string[]> {
    await writeFile(at("before"), before);
    await writeFile(at("after"), after);
    const git = ["diff", "--no-index", "--no-color", "--no-ext-diff", "before", "after"];
    const { stdout } = spawnSync("git", git, { cwd: site.directory, encoding: "utf8" });
    const lines = stdout.split("\n").slice(0, -1);
    return lines.slice(lines.findIndex((each) => each.startsWith("@@")));
  }

  test("applies the output of git diff like git apply", async () => {
    await fc.assert(
      fc.asyncProperty(text, text, async (before, after) => {
        fc.pre(before !== after);
        const hunks = await gitDiff(before, after);
        expect(patched(before, ...hunks)).toBe(after);
        const header = ["--- a/before", "+++ b/before"];
        execFileSync("git", ["apply", "--unidiff-zero", "-"], {
          cwd: site.directory,
          input: [...header, ...hunks, ""].join("\n"),
          stdio: ["pipe", "ignore", "ignore"],
        });
        expect(await content("before")).toBe(after);
      }),
      { numRuns: 60 },
    );
  });

  test("a patch followed by its reverse restores the original", async () => {
    const reversed = (line: string) => {
      const header = /^@@ -(\S+) \+(\S+) @@(.*)$/.exec(line);
      if (header) return `@@ -${header[2]} +${header[1]} @@${header[3]}`;
      return line.replace(/^[-+]/, (sign) => (sign === "-" ? "+" : "-"));
    };
    await fc.assert(
      fc.asyncProperty(text, text, async (before, after) => {
        fc.pre(before !== after);
        const hunks = await gitDiff(before, after);
        expect(patched(patched(before, ...hunks), ...hunks.map(reversed))).toBe(before);
      }),
      { numRuns: 60 },
    );
  });

  test("a chunk is refused or changes only its own lines", () => {
    const chunk = fc.record({ before: fc.array(line, { maxLength: 2 }), old: line, fresh: line });
    fc.assert(
      fc.property(text, chunk, (whole, { before, old, fresh }) => {
        const lines = [...before.map((each) => ` ${each}`), `-${old}`, `+${fresh}`];
        const result = attempt(() => patched(whole, "@@", ...lines));
        if (result === undefined) return;
        const [was, is] = [whole, result].map((each) => each.split("\n"));
        const differing = (was ?? []).flatMap((each, index) => (each === is?.[index] ? [] : [index]));
        expect(differing.length).toBeLessThanOrEqual(1);
        for (const index of differing) {
          expect(was?.[index]?.trimEnd()).toBe(old.trimEnd());
          expect(is?.[index]).toBe(fresh);
        }
      }),
      { numRuns: 500 },
    );
  });
});

function attempt(work: () => string): string | undefined {
  try {
    return work();
  } catch (error) {
    if (error instanceof ToolFailure) return undefined;
    throw error;
  }
}
