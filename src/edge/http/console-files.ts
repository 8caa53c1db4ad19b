import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { extname, join } from "node:path";
import { gzipSync } from "node:zlib";
import type { Handler, Request, Response } from "./sockets.ts";

/** Serves the built console at `/`, from memory; what is none of its files goes on to the next. */
export function createConsoleFiles(directory: string, next: Handler): Handler {
  const files = readFiles(directory);
  return (request, response) => {
    if (request.method !== "GET" && request.method !== "HEAD") return next(request, response);
    const [path = ""] = (request.url ?? "").split("?", 1);
    const file = files.get(path);
    if (file !== undefined) return send(file, request, response);
    if (path === "/") return tellHowToBuild(response);
    next(request, response);
  };
}

interface ConsoleFile {
  headers: Readonly<Record<string, string>>;
  etag: string;
  plain: Buffer;
  zipped: Buffer;
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
    zipped: gzipSync(plain),
    etag: `"${createHash("sha256").update(plain).digest("base64url")}"`,
    headers: {
      ...secure,
      "content-type": types[extname(name)] ?? "application/octet-stream",
      // The names of assets hold a hash of what is in them.
      "cache-control": path.startsWith("/assets/") ? "public, max-age=31536000, immutable" : "no-cache",
      vary: "accept-encoding",
    },
  };
}

function send({ headers, etag, plain, zipped }: ConsoleFile, { headers: asked }: Request, response: Response): void {
  for (const [name, value] of Object.entries({ ...headers, etag })) response.setHeader(name, value);
  if (asked["if-none-match"] === etag) {
    response.statusCode = 304;
    response.end();
    return;
  }
  const takesZipped = /\bgzip\b/.test(String(asked["accept-encoding"] ?? ""));
  const body = takesZipped ? zipped : plain;
  if (takesZipped) response.setHeader("content-encoding", "gzip");
  response.setHeader("content-length", body.length);
  // Node leaves the body out where the request was HEAD.
  response.end(body);
}

function tellHowToBuild(response: Response): void {
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
};

/**
 * Nothing comes from elsewhere and nothing in the page is made from a string, so text that an agent or a tool wrote stays
 * text. Pictures that tools return are shown from the page's own memory.
 */
const policy = [
  "default-src 'self'",
  "img-src 'self' data: blob:",
  "object-src 'none'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
];

const secure = {
  "content-security-policy": policy.join("; "),
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
};
