import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { blocks } from "./blocks.ts";
import { notRun } from "./not-run.ts";
import { deviations, elsewhere, requirements } from "./rows.ts";
import { tableOfRows } from "./table.ts";

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

describe("the table of requirements", () => {
  test("has 248 rows, and is what its script writes", async () => {
    expect(Object.keys(requirements)).toEqual(Array.from({ length: 248 }, (_, i) => String(i + 1)));
    expect(readFileSync(join(import.meta.dirname, "table.md"), "utf8")).toBe(tableOfRows());
  });

  test("shows each row, or says how it deviates and where", () => {
    const states = tableOfRows().matchAll(/^\| \d+ \|.*? \| (Y|deviates, serves the user|not shown) \| (.*) \|$/gm);
    const wrong = [...states].filter(([, state, shown = ""]) => state === "not shown" || shown === "");
    expect(wrong.map(([row]) => row)).toEqual([]);
  });

  test.each(Object.entries(deviations))(
    "row %s says where it deviates, for a reader of the order",
    (_row, [, file, said]) => {
      // A comment or page breaks its lines.
      const text = readFileSync(join(root, file), "utf8").replaceAll(/\s*\n(?:\s*(?:\/\/|\*)(?=\s))?\s*/g, " ");
      expect(text).toContain(said);
    },
  );

  test.each(Object.entries(elsewhere))("row %s is shown by a test that exists", (_row, [file, title]) => {
    expect(readFileSync(join(root, file), "utf8")).toContain(title);
  });
});
