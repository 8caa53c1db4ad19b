import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { minifySync, transformSync } from "rolldown/experimental";

const root = join(import.meta.dirname, "../..");
const file = join(import.meta.dirname, "built-in-versions.json");

/** The declared version of a built-in tool, and the digest of its code in src/tools, without types, comments and white space. */
export interface BuiltInVersion {
  version: string;
  code: string;
}

/** Reads the confirmed versions, by tool. */
export function confirmedVersions(): Record<string, BuiltInVersion> {
  return JSON.parse(readFileSync(file, "utf8"));
}

/** Returns the versions as the source is now, by tool. */
export function presentVersions(): Record<string, BuiltInVersion> {
  const index = readFileSync(join(root, "src/tools/index.ts"), "utf8");
  const files = new Set(
    [...index.matchAll(/from "(\.\/[a-z-]+\.ts)"/g)].map(([, path = ""]) => join(root, "src/tools", path)),
  );
  const found = [...files, join(root, "src/tools/invalid.ts")].flatMap((path) => {
    const declared = readFileSync(path, "utf8").matchAll(/defineTool\(\{\s+name: "(\w+)",\s+version: "([^"]+)"/g);
    return [...declared].map(([, name = "", version = ""]) => [name, { version, code: digestOf(path) }] as const);
  });
  return Object.fromEntries(found.sort(([a], [b]) => (a < b ? -1 : 1)));
}

function digestOf(entry: string): string {
  const found = new Set([entry]);
  const parts: [string, string][] = [];
  // The loop also visits what is added while it runs.
  for (const path of found) {
    const code = codeOf(path);
    parts.push([relative(root, path), code]);
    for (const [, specifier = ""] of code.matchAll(/(?:from|import\(|import)\s*["'`](\.[^"'`]+)["'`]/g)) {
      const imported = resolve(dirname(path), specifier);
      if (imported.startsWith(join(root, "src/tools/"))) found.add(imported);
    }
  }
  parts.sort(([a], [b]) => (a < b ? -1 : 1));
  return createHash("sha256").update(JSON.stringify(parts)).digest("hex").slice(0, 32);
}

function codeOf(path: string): string {
  const { code } = transformSync(path, readFileSync(path, "utf8"), { lang: "ts" });
  return minifySync(path, code, { compress: false, mangle: false, codegen: { removeWhitespace: true } }).code;
}

// Confirms the present versions: node test/tools/built-in-versions.ts
if (import.meta.filename === process.argv[1]) {
  writeFileSync(file, `${JSON.stringify(presentVersions(), undefined, 2)}\n`);
}
