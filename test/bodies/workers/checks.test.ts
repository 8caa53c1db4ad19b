import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";

const root = join(import.meta.dirname, "../../..");
const page = await readFile(join(import.meta.dirname, "checks.md"), "utf8");
const rows = [...page.matchAll(/^\| (\d+)\. .+? \| (.+) \|$/gm)].map(([, number, tests = ""]) => ({ number, tests }));

test("the page has fifteen checks", () => {
  expect(rows.map(({ number }) => Number(number))).toEqual(Array.from({ length: 15 }, (_, index) => index + 1));
});

test.each(rows)("each test of check $number exists", async ({ tests }) => {
  for (const each of tests.split("; `").map((text) => text.replace(/^`?/, "`"))) {
    const [, file = "", name = ""] = /^`([^`]+)`: (.+)$/.exec(each) ?? [];
    expect(await readFile(join(root, file), "utf8"), each).toContain(name);
  }
});
