import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";

const built = resolve(import.meta.dirname, "../../dist/console");
const names = readdirSync(join(built, "assets"));
const text = (name: string) => readFileSync(join(built, "assets", name));

test("the inbox loads at most 75 kB, each other page at most 15 kB when it is first shown, and all have at most 150 kB", () => {
  const index = readFileSync(join(built, "index.html"), "utf8");
  const size = (some: readonly string[]) => some.reduce((sum, name) => sum + gzipSync(text(name)).length, 0);
  const code = names.filter((name) => /\.(js|css)$/.test(name));
  const first = size(code.filter((name) => index.includes(name)));
  console.log(`the console is ${kB(first)} zipped for the inbox, ${kB(size(code))} with all pages`);
  expect(first).toBeLessThanOrEqual(75_000);
  const later = code.filter((name) => !index.includes(name));
  expect(later.filter((name) => size([name]) > 15_000)).toEqual([]);
  expect(later.length).toBeGreaterThanOrEqual(5);
  expect(size(code)).toBeLessThanOrEqual(150_000);
});

const kB = (bytes: number) => `${(bytes / 1_000).toFixed(1)} kB`;

test("the service worker has at most 3 kB, stores nothing, and sees no request of the page", () => {
  const worker = readFileSync(join(built, "service-worker.js"));
  expect(gzipSync(worker).length).toBeLessThanOrEqual(3_000);
  const events = [...worker.toString().matchAll(/addEventListener\("(\w+)"/g)].map(([, event]) => event);
  expect(events.toSorted()).toEqual(["install", "notificationclick", "push"]);
  expect(worker.toString()).not.toMatch(/caches|indexedDB|fetch|importScripts/);
});

test("the page can be installed: the manifest names pictures that exist", () => {
  const { icons, start_url: start } = JSON.parse(readFileSync(join(built, "manifest.webmanifest"), "utf8"));
  expect(start).toBe("/");
  for (const { src, sizes } of icons) {
    const picture = readFileSync(join(built, src));
    expect([src, `${picture.readUInt32BE(16)}x${picture.readUInt32BE(20)}`]).toEqual([src, sizes]);
  }
});

test("the page contains no validation rules, no options of generators and no inline script", () => {
  const code = names
    .filter((name) => name.endsWith(".js"))
    .map((name) => text(name).toString())
    .join("\n");
  expect(code).not.toContain("buf.validate");
  expect(code).not.toContain("java_package");
  expect(readFileSync(join(built, "index.html"), "utf8")).not.toMatch(/<script(?![^>]*src=)/);
});
