import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { blocks } from "./blocks.ts";
import { notRun } from "./not-run.ts";

const root = join(import.meta.dirname, "../..");

/** Texts of the tests that may run blocks. */
const texts = ["test/seeds", "sdk/python/tests"].flatMap((folder) =>
  readdirSync(join(root, folder))
    .filter((name) => /\.(?:ts|py)$/.test(name))
    .map((name) => readFileSync(join(root, folder, name), "utf8")),
);
const run = new Set(texts.flatMap((text) => [...text.matchAll(/\bblock\("([\d.]+)"\)/g)].map(([, id = ""]) => id)));

test("each code block of the order runs in a test, or stands in the list with the reason", () => {
  expect(blocks.size).toBe(71);
  expect([...run, ...Object.keys(notRun)].toSorted()).toEqual([...blocks.keys()].toSorted());
});
