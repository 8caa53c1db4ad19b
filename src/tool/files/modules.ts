import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { type ResolveFnOutput, registerHooks } from "node:module";
import { basename, dirname, relative } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { assets } from "../../core/assets.ts";

/** A problem of a tool or plugin file; `line` is 0 if unknown. */
export interface Problem {
  path: string;
  line: number;
  reason: string;
}

/** Imports modules of tools and plugins, so that a changed file is imported again. */
export interface Modules {
  /**
   * Imports a version of a file. Files that it imports (outside node_modules) are imported in the version `shared`, once for
   * all files with the same one.
   */
  load(path: string, version: string, shared: string): Promise<LoadedModule>;
  /** Returns the files that loaded versions of these files import, directly or not, outside node_modules. */
  importsOf(paths: readonly string[]): string[];
  /** From now on, each import of one of these paths fails unless the file has this SHA-256. */
  expect(files: ReadonlyMap<string, string>): void;
  close(): void;
}

/** A loaded file. */
export interface LoadedModule {
  exports: Readonly<Record<string, unknown>>;
  /** Digest of the file and of all files that it imports, directly or not, outside node_modules; the same wherever they lie. */
  digest: string;
  /** These files, with the SHA-256 of what was loaded. */
  files: ReadonlyMap<string, string>;
}

/** Query that distinguishes versions in Node's module cache: `toolgate=SHARED`, or for an entry `toolgate=VERSION.SHARED`. */
const query = "toolgate";
const loadMs = 10_000;

/** Creates the loader. It provides the packages that tools need even if a project has not installed them. */
export function createModules(): Modules {
  const own = assets.plugin;
  const provided: Readonly<Record<string, string>> = {
    "toolgate/plugin": own,
    "@opencode-ai/plugin": own,
    "@opencode-ai/plugin/tool": own,
    zod: assets.zod,
  };
  const expected = new Map<string, string>();
  const graph = createModuleGraph();
  const hooks = registerHooks({
    load(url, context, next) {
      const wanted = url.startsWith("file:") ? expected.get(fileURLToPath(url.replace(/\?.*$/, ""))) : undefined;
      const loaded = next(url, context);
      // Node reads CommonJS modules later by itself; their source is read here.
      if (wanted === undefined && sharedOf(url) === undefined) return loaded;
      const found = sha256(loaded.source ?? readFileSync(new URL(url)));
      graph.addModule(url, found);
      if (wanted === undefined || wanted === found) return loaded;
      throw new Error(`${fileURLToPath(url.replace(/\?.*$/, ""))} has changed since it was trusted`);
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
      if (!isTheirs || resolved.url === own) return resolved;
      const url = `${resolved.url}?${query}=${shared}`;
      graph.addImport(context.parentURL ?? "", url);
      return { ...resolved, url };
    },
  });
  return {
    async load(path, version, shared) {
      const url = `${pathToFileURL(path).href}?${query}=${version}.${shared}`;
      const exports = await within(loadMs, import(/* @vite-ignore */ url));
      return { exports, ...graph.loadedFrom(url) };
    },
    importsOf: graph.importsOf,
    expect(files) {
      for (const [path, hash] of files) expected.set(path, hash);
    },
    close: () => hooks.deregister(),
  };
}

/** Creates the record of which loaded module imports which. */
function createModuleGraph() {
  const digests = new Map<string, string>();
  const imports = new Map<string, Set<string>>();
  const fileOf = (url: string) => fileURLToPath(url.replace(/\?.*$/, ""));
  const reachedFrom = (entries: Iterable<string>) => {
    const found = new Set(entries);
    // The loop also visits what is added while it runs.
    for (const url of found) for (const next of imports.get(url) ?? []) found.add(next);
    return found;
  };
  return {
    addModule: (url: string, digest: string) => void digests.set(url, digest),
    addImport: (parent: string, url: string) => void imports.set(parent, (imports.get(parent) ?? new Set()).add(url)),
    importsOf(paths: readonly string[]): string[] {
      const entries = [...imports.keys()].filter((url) => paths.includes(fileOf(url)));
      const reached = [...reachedFrom(entries)].filter((url) => !entries.includes(url));
      return [...new Set(reached.map(fileOf))].sort();
    },
    loadedFrom(entry: string): Pick<LoadedModule, "digest" | "files"> {
      const files = new Map([...reachedFrom([entry])].map((url) => [fileOf(url), digests.get(url) ?? ""]));
      const directory = dirname(fileOf(entry));
      const parts = [...files].map(([path, digest]) => [relative(directory, path), digest] as const);
      parts.sort(([a], [b]) => (a < b ? -1 : 1));
      return { files, digest: sha256(JSON.stringify(parts)).slice(0, 32) };
    },
  };
}

/** Hashes the source of a module. */
export function sha256(source: string | ArrayBuffer | NodeJS.TypedArray): string {
  return createHash("sha256")
    .update(source instanceof ArrayBuffer ? new Uint8Array(source) : source)
    .digest("hex");
}

/** Returns the version in which a loaded module imports others; undefined for modules that this loader did not load. */
function sharedOf(parent: string | undefined): string | undefined {
  const version = parent && new RegExp(`[?&]${query}=(?:[0-9a-f]+\\.)?([0-9a-f]+)$`).exec(parent);
  return version ? version[1] : undefined;
}

/** Returns file names that bundlers accept for an import without or with another extension; Node does not. */
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

/** Limits the time of an import, so that a module that never finishes does not hold up the others. */
export async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it was not ready within ${ms / 1_000} s`)), ms);
  });
  return await Promise.race([work, late]).finally(() => clearTimeout(timer));
}

/** Locates an error in the files of tools. `path` is the file that was loaded. */
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
  // Stack frames name a URL; above an excerpt of the source stands a path.
  const place = /(?:^|[\s(])(file:\/\/)?(\/[^\n?:)]*)(?:\?[^\s:)]*)?:(\d+)/gm;
  const ours = assets.root;
  for (const [, isUrl, name = "", line] of (error.stack ?? "").matchAll(place)) {
    const at = isUrl ? fileURLToPath(`file://${name}`) : name;
    // Frames of the service itself do not locate an error in their file.
    if (!at.startsWith(ours) && !at.includes("/node_modules/")) {
      return { path: at, line: Number(line), reason: error.message };
    }
  }
  return { path, line: 0, reason: error.message };
}
