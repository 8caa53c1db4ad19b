import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";

const built = resolve(import.meta.dirname, "../../dist/console");
const names = readdirSync(join(built, "assets"));
const text = (name: string) => readFileSync(join(built, "assets", name));

// Since risks, whole changes and links to answered requests are shown, 80 kB are not enough.
test("all pages together are at most 90 kB; pages other than the inbox load when first shown", () => {
  const index = readFileSync(join(built, "index.html"), "utf8");
  const size = (some: readonly string[]) => some.reduce((sum, name) => sum + gzipSync(text(name)).length, 0);
  const code = names.filter((name) => /\.(js|css)$/.test(name));
  const first = size(code.filter((name) => index.includes(name)));
  console.log(`the console is ${kB(first)} zipped for the inbox, ${kB(size(code))} with all pages`);
  expect(size(code)).toBeLessThanOrEqual(90_000);
  expect(first).toBeLessThan(size(code));
});

const kB = (bytes: number) => `${(bytes / 1_000).toFixed(1)} kB`;

test("the page contains no validation rules, no options of generators and no inline script", () => {
  const code = names
    .filter((name) => name.endsWith(".js"))
    .map((name) => text(name).toString())
    .join("\n");
  expect(code).not.toContain("buf.validate");
  expect(code).not.toContain("java_package");
  expect(readFileSync(join(built, "index.html"), "utf8")).not.toMatch(/<script(?![^>]*src=)/);
});
