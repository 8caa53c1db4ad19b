import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { type ResolveFnOutput, registerHooks } from "node:module";
import { basename } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

/** What is wrong with a file that people wrote; `line` is 0 where it is not known. */
export interface Problem {
  path: string;
  line: number;
  reason: string;
}

/** Imports people's modules, so that a changed one is read anew. */
export interface Modules {
  /**
   * Imports a file in a version. What it imports from files of people's own (not from node_modules) is imported in the
   * version `shared`: once for all that name the same one.
   */
  load(path: string, version: string, shared: string): Promise<Readonly<Record<string, unknown>>>;
  /** From now on a file of these paths is loaded only if its SHA-256 is this one, whenever and by whomever it is imported. */
  expect(files: ReadonlyMap<string, string>): void;
  close(): void;
}

/** The query by which Node's module cache tells versions apart: `toolgate=VERSION` or, of an entry, `VERSION.SHARED`. */
const query = "toolgate";
const loadMs = 10_000;

/** Makes the loader. The packages that tools are written with are there even where a project has not installed them. */
export function createModules(): Modules {
  const own = new URL("../plugin.ts", import.meta.url).href;
  const provided: Readonly<Record<string, string>> = {
    "toolgate/plugin": own,
    "@opencode-ai/plugin": own,
    "@opencode-ai/plugin/tool": own,
    zod: import.meta.resolve("zod"),
  };
  const expected = new Map<string, string>();
  const hooks = registerHooks({
    load(url, context, next) {
      const wanted = url.startsWith("file:") ? expected.get(fileURLToPath(url.replace(/\?.*$/, ""))) : undefined;
      const loaded = next(url, context);
      // What Node leaves to its own reader later is read here; it is code of packages in the old format.
      if (wanted === undefined || wanted === sha256(loaded.source ?? readFileSync(new URL(url)))) return loaded;
      throw new Error(`${fileURLToPath(url.replace(/\?.*$/, ""))} is not what was trusted; it was changed since`);
    },
    resolve(specifier, context, next) {
      const shared = sharedOf(context.parentURL);
      if (shared === undefined) return next(specifier, context);
      if (specifier === "toolgate/plugin") return { url: own, shortCircuit: true };
      const resolved = firstOf<ResolveFnOutput>(
        [specifier, ...otherSpellings(specifier)],
        (name) => next(name, context),
        () => {
          const url = provided[specifier];
          return url === undefined ? undefined : { url, shortCircuit: true };
        },
      );
      const isTheirs = resolved.url.startsWith("file:") && !resolved.url.includes("/node_modules/");
      return isTheirs && resolved.url !== own ? { ...resolved, url: `${resolved.url}?${query}=${shared}` } : resolved;
    },
  });
  return {
    async load(path, version, shared) {
      const url = `${pathToFileURL(path).href}?${query}=${version}.${shared}`;
      return await within(loadMs, import(/* @vite-ignore */ url));
    },
    expect(files) {
      for (const [path, hash] of files) expected.set(path, hash);
    },
    close: () => hooks.deregister(),
  };
}

function sha256(source: string | ArrayBuffer | NodeJS.TypedArray): string {
  return createHash("sha256")
    .update(source instanceof ArrayBuffer ? new Uint8Array(source) : source)
    .digest("hex");
}

/** The version in which a module of ours-to-load imports others; undefined for all other modules. */
function sharedOf(parent: string | undefined): string | undefined {
  const version = parent && new RegExp(`[?&]${query}=(?:[0-9a-f]+\\.)?([0-9a-f]+)$`).exec(parent);
  return version ? version[1] : undefined;
}

/** Bundlers and other runtimes let an import leave out or disguise what the file is called; Node does not. */
function otherSpellings(specifier: string): string[] {
  if (!specifier.startsWith(".")) return [];
  if (specifier.endsWith(".js")) return [specifier.replace(/js$/, "ts")];
  return [".ts", ".js", "/index.ts", "/index.js"].map((end) => specifier + end);
}

function firstOf<T>(names: readonly string[], resolve: (name: string) => T, otherwise: () => T | undefined): T {
  let first: unknown;
  for (const name of names) {
    try {
      return resolve(name);
    } catch (error) {
      first ??= error;
    }
  }
  const last = otherwise();
  if (last !== undefined) return last;
  throw first;
}

/** Resolves with the work, or throws after a while: a module that waits for ever must not stop the others. */
export async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it was not ready within ${ms / 1_000} s`)), ms);
  });
  return await Promise.race([work, late]).finally(() => clearTimeout(timer));
}

/** Says where in people's files an error is. `path` is the file that was loaded. */
export async function loadProblem(path: string, error: unknown): Promise<Problem> {
  if (!(error instanceof Error)) return { path, line: 0, reason: String(error) };
  const missing = /^Cannot find (?:module|package) '([^']+)' imported from (.+)$/.exec(error.message);
  if (missing) {
    const [, name = "", importer = path] = missing;
    const lines = (await readFile(importer, "utf8").catch(() => "")).split("\n");
    return {
      path: importer,
      line: lines.findIndex((line) => line.includes(basename(name))) + 1,
      reason: error.message,
    };
  }
  // Frames name a URL or, above an excerpt of the source, a path.
  const place = /(?:^|[\s(])(file:\/\/)?(\/[^\n?:)]*)(?:\?[^\s:)]*)?:(\d+)/gm;
  const ours = fileURLToPath(new URL("../..", import.meta.url));
  for (const [, isUrl, name = "", line] of (error.stack ?? "").matchAll(place)) {
    const at = isUrl ? fileURLToPath(`file://${name}`) : name;
    // Frames of ours below theirs say nothing about their file.
    if (!at.startsWith(ours) && !at.includes("/node_modules/")) {
      return { path: at, line: Number(line), reason: error.message };
    }
  }
  return { path, line: 0, reason: error.message };
}
