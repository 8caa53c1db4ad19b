import { execFileSync } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { callTool, openTestWorkspace, planCall, type TestWorkspace } from "../../src/testing.ts";
import { ChangedAfterApproval, InvalidInput } from "../../src/tool/errors.ts";
import { createEditTool } from "../../src/tools/edit.ts";
import { createFileChanges } from "../../src/tools/fs/change-file.ts";
import { readTool } from "../../src/tools/read.ts";
import { createWrite } from "../../src/tools/write.ts";

const changes = createFileChanges();
const edit = createEditTool({ changes });
let site: TestWorkspace;
beforeEach(async () => {
  site = await openTestWorkspace();
});
afterEach(() => site.remove());

const at = (name: string) => join(site.directory, name);
const text = () => readFile(at("a.txt"), "utf8");
async function given(content: string | Buffer): Promise<void> {
  await writeFile(at("a.txt"), content);
  await callTool(site, readTool, { filePath: "a.txt" });
}
const change = (oldString: string, newString: string, rest = {}) =>
  callTool(site, edit, { filePath: "a.txt", oldString, newString, ...rest });

describe("an edit", () => {
  test("replaces text that occurs once, after a preview as a diff", async () => {
    await given("one\ntwo\nthree\n");
    const input = { filePath: "a.txt", oldString: "two", newString: "2\n2" };
    const { plan } = await planCall(site, edit, input);
    expect(plan.asks).toMatchObject([{ permission: "edit", patterns: ["a.txt"], paths: [at("a.txt")] }]);
    expect((await plan.inspect?.())?.preview?.()).toEqual({
      diff: "--- a.txt\n+++ a.txt\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+2\n three\n",
      paths: ["a.txt"],
      additions: 2,
      deletions: 1,
    });
    const { output, metadata } = await change("two", "2\n2");
    expect(output).toBe("Edit applied successfully (1 replacement).");
    expect(metadata).toMatchObject({ additions: 2, deletions: 1, replacements: 1 });
    expect(await text()).toBe("one\n2\n2\nthree\n");
  });

  test("may follow another without reading the file again", async () => {
    await given("one two");
    await change("one", "1");
    await change("two", "2");
    expect(await text()).toBe("1 2");
  });

  test("of a text that occurs more than once names the lines, or replaces all of them", async () => {
    await given("x = 1\ny = 2\nx = 1\n");
    await expect(change("x = 1", "z")).rejects.toThrow(
      "Found 2 matches for oldString, at lines 1, 3. Provide more surrounding context",
    );
    expect((await change("x = 1", "$&$1", { replaceAll: true })).metadata).toMatchObject({ replacements: 2 });
    expect(await text()).toBe("$&$1\ny = 2\n$&$1\n");
  });

  test("of a text that overlaps itself is ambiguous, exactly or ignoring spaces", async () => {
    await given("{\n}\n}\n}\n");
    await expect(change("}\n}", "]\n]")).rejects.toThrow("Found 2 matches for oldString, at lines 2, 3.");
    await expect(change("} \n}", "]\n]")).rejects.toThrow("Found 2 matches for oldString, at lines 2, 3.");
    expect((await change("}\n}", "]", { replaceAll: true })).metadata).toMatchObject({ replacements: 1 });
    expect(await text()).toBe("{\n]\n}\n");
  });

  test("of a text that does not occur changes nothing and reports where it starts to differ", async () => {
    await given("function a() {\n  one();\n  two();\n}\n");
    await expect(change("function a() {\n  one();\n  three();\n}", "x")).rejects.toThrow(
      "Could not find oldString in the file. It must match exactly, including whitespace, indentation, and line endings. Its first line occurs at line 1",
    );
    expect(await text()).toBe("function a() {\n  one();\n  two();\n}\n");
  });

  test("never confuses blocks with equal first and last lines", async () => {
    const source = "if (a) {\n  save();\n  log();\n}\n";
    await given(source);
    await expect(change("if (a) {\n  drop();\n  exit();\n}", "")).rejects.toThrow("Could not find oldString");
    expect(await text()).toBe(source);
  });

  test("preserves line ends, also in new lines, and the byte order mark", async () => {
    await given("\uFEFFone\r\ntwo\r\nthree\r\n");
    await change("one\ntwo", "1\n2\n2b");
    expect(await text()).toBe("\uFEFF1\r\n2\r\n2b\r\nthree\r\n");
  });

  test("preserves all other line ends in a file with both kinds", async () => {
    await given("one\r\ntwo\nthree\r\nfour\n");
    await change("three", "3");
    expect(await text()).toBe("one\r\ntwo\n3\r\nfour\n");
  });

  test.each([
    ["one\r\ntwo\nthree\nfour\n", "three", "3\n3b", "one\r\ntwo\n3\n3b\nfour\n"],
    ["one\r\ntwo\nthree\nfour\n", "two\nthree", "2\n3", "one\r\n2\n3\nfour\n"],
    ["one\r\ntwo\nthree\nfour\n", "one", "1\n1b", "1\r\n1b\r\ntwo\nthree\nfour\n"],
    ["one\ntwo\r\nthree\r\n", "two\nthree\n", "2\n\n3\n", "one\n2\r\n\r\n3\r\n"],
    ["one\ntwo\r\nthree\r\n", "three", "3\n3b", "one\ntwo\r\n3\r\n3b\r\n"],
  ])("of a file with both kinds of line ends takes those of its place: %j, %j", async (before, old, fresh, after) => {
    await given(before);
    await change(old, fresh);
    expect(await text()).toBe(after);
  });

  test("in all places takes the line ends of each place", async () => {
    await given("a;\r\nb\na;\nb\r\na;");
    await change("a;", "1\n2", { replaceAll: true });
    expect(await text()).toBe("1\r\n2\r\nb\n1\n2\nb\r\n1\r\n2");
  });

  test("ignores spaces at the ends of lines if there is no exact match, and reports it", async () => {
    await given("a {  \n  b\t\n}\n");
    const { output } = await change("a {\n  b\n}", "c");
    expect(output).toContain("found ignoring spaces at the ends of lines");
    expect(await text()).toBe("c\n");
  });

  test("ignores typographic characters if there is no exact match", async () => {
    await given("say “hello” – it’s here\n");
    await change(`say "hello" - it's here`, "bye");
    expect(await text()).toBe("bye\n");
  });

  test("with another common indentation gets the indentation of the file", async () => {
    await given("class A {\n    one() {\n        return 1;\n    }\n}\n");
    const { output } = await change("one() {\n    return 1;\n}", "one() {\n    return 2;\n}\n\ntwo() {}");
    expect(output).toContain("found ignoring how far it is indented");
    expect(await text()).toBe("class A {\n    one() {\n        return 2;\n    }\n\n    two() {}\n}\n");
  });

  test("in all places gets the indentation of each place", async () => {
    await given("{\n  if (a) {\n    b();\n  }\n}\n\tif (a) {\n\t  b();\n\t}\n");
    await expect(change("if (a) {\n  b();\n}", "c();\nd();")).rejects.toThrow(
      "Found 2 matches for oldString, at lines 2, 6.",
    );
    await change("if (a) {\n  b();\n}", "c();\nd();", { replaceAll: true });
    expect(await text()).toBe("{\n  c();\n  d();\n}\n\tc();\n\td();\n");
  });

  test("with other indentation in single lines is refused", async () => {
    await given("if a:\n    b()\n    c()\n");
    await expect(change("if a:\n    b()\nc()", "x")).rejects.toThrow("Could not find oldString");
  });
});

describe("a search in a text that repeats itself", () => {
  test.each([
    ["characters", "a".repeat(16_000_000), `b${"a".repeat(500_000)}`, "Could not find oldString"],
    ["lines", `y\n${"x \n".repeat(900_000)}`, `${"x\n".repeat(200_000)}y`, "Could not find oldString"],
    ["indented lines", `${"  x\n".repeat(400_000)}y`, `${"x\n".repeat(200_000)} x`, "takes too long"],
    ["places", "a".repeat(1_000_001), "a", "occurs in over 1000000 places"],
    ["short lines", "\n".repeat(16_000_000), "x", "has over 1000000 lines"],
  ])("ends: %s", async (_, content, oldString, why) => {
    await given(content);
    await expect(change(oldString, "c")).rejects.toThrow(why);
  });
});

describe("an edit is refused", () => {
  test("of a file that was not read, or has changed since", async () => {
    await writeFile(at("a.txt"), "one");
    await expect(change("one", "1")).rejects.toThrow("You must read the file");
    await given("one");
    await writeFile(at("a.txt"), "one!");
    await expect(change("one", "1")).rejects.toThrow("has been modified since it was last read");
  });

  test("that was approved for another content", async () => {
    await given("one");
    const call = await planCall(site, edit, { filePath: "a.txt", oldString: "one", newString: "1" });
    await call.plan.inspect?.();
    await writeFile(at("a.txt"), "one!");
    await expect(call.run()).rejects.toThrow(ChangedAfterApproval);
    expect(await text()).toBe("one!");
  });

  test("of what is not text, since it would be damaged", async () => {
    await given(Buffer.from("caf\xe9 one", "latin1"));
    await expect(change("one", "1")).rejects.toThrow("is not UTF-8 text");
  });

  test("that changes nothing, or is for a missing file", async () => {
    await expect(change("a", "a")).rejects.toThrow(InvalidInput);
    await expect(change("a", "b")).rejects.toThrow("not found");
  });

  test("with an empty oldString, unless it makes a file", async () => {
    await change("", "new\n");
    expect(await text()).toBe("new\n");
    await expect(change("", "other")).rejects.toThrow("oldString is empty, but");
  });
});

test("edit and write of one file take turns: of two that were approved for one version one is refused", async () => {
  await given("one");
  const write = createWrite({ changes });
  const calls = [
    await planCall(site, edit, { filePath: "a.txt", oldString: "one", newString: "1" }),
    await planCall(site, write, { filePath: "a.txt", content: "2" }),
  ];
  for (const call of calls) await call.plan.inspect?.();
  const results = await Promise.allSettled(calls.map((call) => call.run()));
  expect(results.map(({ status }) => status)).toEqual(["fulfilled", "rejected"]);
  expect(await text()).toBe("1");
});

test("an edit followed by its reverse restores the original, and other text is unchanged", async () => {
  const line = fc.constantFrom("", "a", "  b", "\tc  ", "d”");
  const ends = fc.constantFrom("\n", "\r\n");
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.tuple(line, ends), { maxLength: 8 }),
      fc.array(fc.tuple(line, ends), { maxLength: 8 }),
      fc.array(line, { minLength: 1, maxLength: 3 }),
      async (before, after, middle) => {
        const [head, tail] = [before, after].map((lines) => lines.flat().join(""));
        const lineEnd = `${head}${tail}`.includes("\r\n") ? "\r\n" : "\n";
        const [old, made] = [`<${middle.join(lineEnd)}>`, `[${middle.toReversed().join(lineEnd)}]`];
        const original = `${head}${old}${tail}`;
        await given(original);
        await change(old, made);
        expect(await text()).toBe(`${head}${made}${tail}`);
        await change(made, old);
        expect(await text()).toBe(original);
      },
    ),
    { numRuns: 150 },
  );
});

test("the previewed diff, applied by git apply, makes the same file as the edit", async () => {
  const line = fc.constantFrom("", "a", "  b", "-", "+c", "@@ -1 +1 @@", "\\ d", "é");
  const lines = fc.array(line, { maxLength: 12 });
  const texts = fc.record({ head: lines, old: fc.array(line, { minLength: 1 }), made: lines, tail: lines, rest: line });
  await fc.assert(
    fc.asyncProperty(texts, async ({ head, old, made, tail, rest }) => {
      const whole = (middle: string[]) => [...head, "<", ...middle, ">", ...tail, rest].join("\n");
      fc.pre(whole(old) !== whole(made));
      await given(whole(old));
      const input = { oldString: ["<", ...old, ">"].join("\n"), newString: ["<", ...made, ">"].join("\n") };
      const call = await planCall(site, edit, { filePath: "a.txt", ...input });
      const diff = (await call.plan.inspect?.())?.preview?.().diff ?? "";
      await call.run();
      const byEdit = await text();
      expect(byEdit).toBe(whole(made));
      await given(whole(old));
      execFileSync("git", ["apply", "-p0", "--whitespace=nowarn", "-"], {
        cwd: site.directory,
        input: diff,
        stdio: ["pipe", "ignore", "pipe"],
      });
      expect(await text()).toBe(byEdit);
    }),
    { numRuns: 60 },
  );
});
