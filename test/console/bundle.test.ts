import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";

const built = resolve(import.meta.dirname, "../../dist/console");
const names = readdirSync(join(built, "assets"));
const text = (name: string) => readFileSync(join(built, "assets", name));

test("what a browser loads is at most 80 kB", () => {
  const loaded = names.filter((name) => /\.(js|css)$/.test(name));
  const bytes = loaded.map((name) => gzipSync(text(name)).length).reduce((sum, length) => sum + length, 0);
  console.log(`the console is ${(bytes / 1_000).toFixed(1)} kB, zipped`);
  expect(bytes).toBeLessThanOrEqual(80_000);
});

test("it holds no rules of validation and no way to make the page from a string", () => {
  const code = names
    .filter((name) => name.endsWith(".js"))
    .map((name) => text(name).toString())
    .join("\n");
  expect(code).not.toContain("buf.validate");
  expect(readFileSync(join(built, "index.html"), "utf8")).not.toMatch(/<script(?![^>]*src=)/);
});
