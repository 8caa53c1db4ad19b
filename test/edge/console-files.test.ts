import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { startServer } from "./server.ts";

async function serveConsole() {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-console-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  await mkdir(join(directory, "assets"));
  await writeFile(join(directory, "index.html"), "<!doctype html><title>Toolgate</title>");
  await writeFile(join(directory, "assets/index-abc.js"), "'code'");
  await writeFile(join(directory, "manifest.webmanifest"), "{}");
  return await startServer({}, { consoleDirectory: directory });
}

test("the page is revalidated each time, its assets never", async () => {
  const { url } = await serveConsole();
  const page = await fetch(url);
  expect(await page.text()).toContain("<title>Toolgate</title>");
  expect(page.headers.get("content-type")).toBe("text/html; charset=utf-8");
  expect(page.headers.get("cache-control")).toBe("no-cache");
  const again = await fetch(url, { headers: { "if-none-match": page.headers.get("etag") ?? "" } });
  expect(again.status).toBe(304);
  const asset = await fetch(`${url}/assets/index-abc.js`);
  expect(asset.headers.get("cache-control")).toBe("public, max-age=31536000, immutable");
  expect(asset.headers.get("content-type")).toBe("text/javascript; charset=utf-8");
  const manifest = await fetch(`${url}/manifest.webmanifest`);
  expect(manifest.headers.get("content-type")).toBe("application/manifest+json");
});

test("the policy allows nothing from other origins, no inline script and no frame around the page", async () => {
  const { url } = await serveConsole();
  const { headers } = await fetch(url);
  const policy = headers.get("content-security-policy") ?? "";
  for (const part of ["default-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"]) {
    expect(policy).toContain(part);
  }
  // The one policy for trusted values names the service worker.
  expect(policy).toMatch(/trusted-types service-worker$/);
  expect(policy).not.toContain("unsafe");
  expect(headers.get("x-content-type-options")).toBe("nosniff");
  expect(headers.get("referrer-policy")).toBe("no-referrer");
});

test("the link of a request is the page, which nothing stores or indexes; no other path below it is served", async () => {
  const { url } = await serveConsole();
  for (const path of ["/r/per_0mh3x8f1a6e0b", "/r/per_Ab-_9_2?utm_source=chat"]) {
    const page = await fetch(`${url}${path}`);
    expect([path, page.status, await page.text()]).toEqual([path, 200, "<!doctype html><title>Toolgate</title>"]);
    expect(Object.fromEntries(page.headers)).toMatchObject({
      "cache-control": "no-store",
      "referrer-policy": "no-referrer",
      "x-robots-tag": "noindex, nofollow",
    });
  }
  const bad = ["", "per_", "ses_1", "per_1/", "per_1/x", "per_1%2f..", "%70er_1", "per_<b>", `per_${"a".repeat(65)}`];
  for (const id of bad) expect([id, (await fetch(`${url}/r/${id}`)).status]).toEqual([id, 404]);
  const wrong = await fetch(`${url}/r/per_<b>`, { headers: { accept: "text/html,*/*" } });
  expect([wrong.status, wrong.headers.get("content-type")]).toEqual([404, "text/html; charset=utf-8"]);
  expect(await wrong.text()).toContain("No request has this link");
  for (const method of ["POST", "PUT", "DELETE"])
    expect([method, (await fetch(`${url}/r/per_1`, { method })).status]).toEqual([method, 404]);
});

test("a client that does not accept gzip gets the plain file", async () => {
  const { url } = await serveConsole();
  const plain = await fetch(url, { headers: { "accept-encoding": "identity" } });
  expect(plain.headers.get("content-encoding")).toBeNull();
  expect(await plain.text()).toContain("Toolgate");
  expect((await fetch(url)).headers.get("content-encoding")).toBe("gzip");
});

test("a path that names no file is not found, however it is written", async () => {
  const { url } = await serveConsole();
  for (const path of ["/index.html", "/assets/", "/%2e%2e/etc/passwd", "/assets/none.js"]) {
    const { status } = await fetch(`${url}${path}`);
    expect([path, status]).toEqual([path, 404]);
  }
});

test("an unknown host gets no page", async () => {
  const { url } = await serveConsole();
  const { request } = await import("node:http");
  const status = await new Promise((resolve) => {
    request(url, { headers: { host: "evil.example" } }, ({ statusCode }) => resolve(statusCode)).end();
  });
  expect(status).not.toBe(200);
});

test("a console that was not built names the command that builds it", async () => {
  const { url } = await startServer();
  const answer = await fetch(url);
  expect(answer.status).toBe(503);
  expect(await answer.text()).toContain("npm run build");
});
