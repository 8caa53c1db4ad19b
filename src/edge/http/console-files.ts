import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { extname, join } from "node:path";
import { gzipSync } from "node:zlib";
import { notServed } from "../api/request-failure.ts";
import type { Mount, Request, Response } from "./handler.ts";

/** Opens the door for browsers: the built console at `/`, from memory, and at the link of each permission request. */
export function consoleDoor(directory: string): Mount[] {
  const files = readFiles(directory);
  const page = files.get("/");
  const explain = (_request: Request, response: Response) => explainBuild(response);
  const mounts: Mount[] = [...files].map(([path, file]) => ({
    path,
    methods,
    handle: (request, response) => sendFile(file, request, response),
  }));
  if (page === undefined) mounts.push({ path: "/", methods, handle: explain });
  return [...mounts, { path: linkPath, methods, handle: page === undefined ? explain : sendLinked(page) }];
}

/** Path of the links to permission requests: the id follows. */
const linkPath = "/r/";

/**
 * Serves the page at the link of a request. The link carries no credential and the request is not looked up, so that whatever follows
 * links without a person, such as a scanner of mail or the preview of a chat, learns and changes nothing.
 */
function sendLinked(page: ConsoleFile): Mount["handle"] {
  const headers = { ...page.headers, "cache-control": "no-store", "x-robots-tag": "noindex, nofollow" };
  return (request, response) => {
    const [path = ""] = (request.url ?? "").split("?", 1);
    if (!/^per_[\w-]{1,64}$/.test(path.slice(linkPath.length))) {
      if (/\btext\/html\b/.test(request.headers.accept ?? "")) return explainLink(response);
      throw notServed("not_found", `${path} is no link to a permission request`);
    }
    return sendFile({ ...page, headers }, request, response);
  };
}

const methods: readonly string[] = ["GET", "HEAD"];

interface ConsoleFile {
  headers: Readonly<Record<string, string>>;
  etag: string;
  plain: Buffer;
  gzipped: Buffer;
}

function readFiles(directory: string): ReadonlyMap<string, ConsoleFile> {
  if (!existsSync(join(directory, "index.html"))) return new Map();
  const names = readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => join(parentPath, name));
  return new Map(
    names.map((name) => {
      const path = name.slice(directory.length);
      return [path === "/index.html" ? "/" : path, readFile(name, path)];
    }),
  );
}

function readFile(name: string, path: string): ConsoleFile {
  const plain = readFileSync(name);
  return {
    plain,
    gzipped: gzipSync(plain),
    etag: `"${createHash("sha256").update(plain).digest("base64url")}"`,
    headers: {
      ...secure,
      "content-type": types[extname(name)] ?? "application/octet-stream",
      // The name of an asset contains a hash of its content.
      "cache-control": path.startsWith("/assets/") ? "public, max-age=31536000, immutable" : "no-cache",
      vary: "accept-encoding",
    },
  };
}

function sendFile(
  { headers, etag, plain, gzipped }: ConsoleFile,
  { headers: requested }: Request,
  response: Response,
): void {
  for (const [name, value] of Object.entries({ ...headers, etag })) response.setHeader(name, value);
  if (requested["if-none-match"] === etag) {
    response.statusCode = 304;
    response.end();
    return;
  }
  const acceptsGzip = /\bgzip\b/.test(String(requested["accept-encoding"] ?? ""));
  const body = acceptsGzip ? gzipped : plain;
  if (acceptsGzip) response.setHeader("content-encoding", "gzip");
  response.setHeader("content-length", body.length);
  // Node omits the body if the request was HEAD.
  response.end(body);
}

function explainLink(response: Response): void {
  response.statusCode = 404;
  const headers = { ...secure, "cache-control": "no-store", "content-type": "text/html; charset=utf-8" };
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  response.end(`<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><title>Toolgate</title>
<h1>No request has this link</h1><p>It may be cut: copy all of it. <a href="/">Open requests</a></p></html>\n`);
}

function explainBuild(response: Response): void {
  response.statusCode = 503;
  for (const [name, value] of Object.entries(secure)) response.setHeader(name, value);
  response.setHeader("content-type", "text/plain; charset=utf-8");
  response.end("The service runs, but its console was not built. Build it with: npm run build, then start again.\n");
}

const types: Readonly<Record<string, string>> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
  ".png": "image/png",
  ".webmanifest": "application/manifest+json",
};

/**
 * Content security policy: the page loads nothing from other origins and creates no code or markup from strings, so that text
 * of an agent or a tool stays text. Images that tools return are shown from the page's memory. The only policy for trusted values
 * returns the address of the service worker, which receives pushes.
 */
const policy = [
  "default-src 'self'",
  "img-src 'self' data: blob:",
  "object-src 'none'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types service-worker",
];

const secure = {
  "content-security-policy": policy.join("; "),
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
};
