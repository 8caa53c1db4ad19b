import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test } from "vitest";
import { callTool, openTestWorkspace, planCall, type TestWorkspace } from "../../src/testing.ts";
import { boundTool } from "../../src/tool/define-tool.ts";
import { InvalidInput } from "../../src/tool/errors.ts";
import { createFileChanges } from "../../src/tools/fs/change-file.ts";
import { createMultiEdit } from "../../src/tools/multiedit.ts";
import { readTool } from "../../src/tools/read.ts";

const multiedit = createMultiEdit({ changes: createFileChanges() });
let site: TestWorkspace;
beforeEach(async () => {
  site = await openTestWorkspace();
});
afterEach(() => site.remove());

const text = () => readFile(join(site.directory, "a.txt"), "utf8");
async function given(content: string): Promise<void> {
  await writeFile(join(site.directory, "a.txt"), content);
  await callTool(site, readTool, { filePath: "a.txt" });
}
const edit = (oldString: string, newString: string, rest = {}) => ({ oldString, newString, ...rest });
const change = (...edits: ReturnType<typeof edit>[]) => callTool(site, multiedit, { filePath: "a.txt", edits });

test("edits apply in order, and are previewed and written as one change", async () => {
  await given("one\r\ntwo\r\n");
  const edits = [edit("one", "1"), edit("1\ntwo", "1\n2"), edit("\n", "!\n", { replaceAll: true })];
  const call = await planCall(site, multiedit, { filePath: "a.txt", edits });
  expect(call.plan.asks).toMatchObject([{ permission: "edit", patterns: ["a.txt"] }]);
  expect((await call.plan.inspect?.())?.preview?.().diff).toContain("-one\r\n-two\r\n+1!\r\n+2!\r\n");
  const { output, metadata } = await call.run();
  expect(output).toBe("3 edits applied successfully.");
  expect(metadata).toMatchObject({ additions: 2, deletions: 2, replacements: 4 });
  expect(await text()).toBe("1!\r\n2!\r\n");
});

test("an error names the edit that fails, and none is applied", async () => {
  await given("one\n");
  await expect(change(edit("one", "1"), edit("one", "2"))).rejects.toThrow(
    /^Edit 2 of 2: Could not find oldString .* No edit was applied\.$/,
  );
  expect(await text()).toBe("one\n");
});

test("all edits of one call share the steps of their searches", async () => {
  const [before, after] = ["y", "z"].map((last) => `${"a".repeat(20)}${last}`);
  await given(`${"a".repeat(15_000_000)}y`);
  const pairs = Array.from({ length: 10 }, () => [edit(before ?? "", after ?? ""), edit(after ?? "", before ?? "")]);
  await expect(change(...pairs.flat())).rejects.toThrow(
    /^Edit \d+ of 20: .* takes too long\. Make fewer changes in one call\. No edit was applied\.$/,
  );
});

test("an empty oldString makes a new file, which later edits change", async () => {
  await change(edit("", "one two"), edit("two", "2"));
  expect(await text()).toBe("one 2");
});

test.each([
  [[], "edits"],
  [[edit("a", "a")], "edits.0.newString"],
])("edits that change nothing are refused: %#", (edits, where) => {
  expect(() => boundTool(multiedit).decode({ filePath: "a", edits })).toThrow(InvalidInput);
  expect(() => boundTool(multiedit).decode({ filePath: "a", edits })).toThrow(where);
});

test("edits followed by their reverse in reverse order restore the original", async () => {
  const words = fc.uniqueArray(fc.stringMatching(/^[a-z]{3,6}$/), { minLength: 4, maxLength: 8 });
  await fc.assert(
    fc.asyncProperty(words, async (list) => {
      const [first = "", ...rest] = list.map((word) => `<${word}>`);
      const before = `${rest.join("\n")}\n`;
      const pairs = rest.map((word, index) => [word, `${first}${index};`] as const);
      await given(before);
      await change(...pairs.map(([word, other]) => edit(word, other)));
      await change(...pairs.toReversed().map(([word, other]) => edit(other, word)));
      expect(await text()).toBe(before);
    }),
    { numRuns: 30 },
  );
});
