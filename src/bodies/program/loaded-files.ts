import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { dirname, extname, join, relative } from "node:path";

/** Record of the local files that were loaded, and of which imports which. */
export type LoadedFiles = ReturnType<typeof createLoadedFiles>;

/** Creates an empty record. A file whose content is not the expected one is refused when it is added. `entries` count in any place. */
export function createLoadedFiles(entries: readonly string[], expected: ReadonlyMap<string, string>) {
  const isLocal = (path: string) => !path.includes("/node_modules/") || entries.includes(path);
  const digests = new Map<string, string>();
  const imports = new Map<string, Set<string>>();
  return {
    addFile(path: string, content: string | Uint8Array): void {
      const found = createHash("sha256").update(content).digest("hex");
      const wanted = expected.get(path);
      if (wanted !== undefined && wanted !== found) throw new Error(`${path} has changed since it was trusted`);
      if (isLocal(path)) digests.set(path, found);
    },
    has: (path: string): boolean => digests.has(path),
    /** Reports whether another local file imports a file. */
    isImported: (path: string): boolean =>
      [...imports].some(([importer, imported]) => importer !== path && imported.has(path)),
    addImport: (importer: string, imported: string): void =>
      void imports.set(importer, (imports.get(importer) ?? new Set()).add(imported)),
    /** Digests a loaded file and all local files that it imports, directly or not; the same wherever they lie. */
    digestOf(path: string): string {
      const reached = new Set([path]);
      // The loop also visits what is added while it runs.
      for (const file of reached) for (const next of imports.get(file) ?? []) reached.add(next);
      const parts = [...reached]
        .flatMap((file) => (digests.has(file) ? [[relative(dirname(path), file), digests.get(file)] as const] : []))
        .sort(([a], [b]) => (a < b ? -1 : 1));
      return createHash("sha256").update(JSON.stringify(parts)).digest("hex").slice(0, 32);
    },
    /** All loaded files but those of installed packages that others import, with the SHA-256 of what was loaded. */
    files: (): { path: string; sha256: string }[] => [...digests].map(([path, sha256]) => ({ path, sha256 })),
  };
}

/** Imports modules of tools and plugins. A process imports each once: a changed file is loaded by another process. */
export interface ModuleLoader extends Pick<LoadedFiles, "digestOf" | "files" | "isImported"> {
  /** Imports a file by its absolute path. */
  load(path: string): Promise<Readonly<Record<string, unknown>>>;
}

/** The two kinds of modules. */
export type ModuleFormat = "module" | "commonjs";

/** Returns the kind of a module: by its extension, the syntax of its JavaScript, or the nearest package.json. */
export function moduleFormat(path: string, code: string): ModuleFormat {
  if (/^\.c[jt]s$/.test(extname(path))) return "commonjs";
  if (/^\.m[jt]s$/.test(extname(path)) || moduleSyntax.test(code)) return "module";
  return typeOf(dirname(path)) === "commonjs" ? "commonjs" : "module";
}

const moduleSyntax = /^\s*(?:import|export)\b(?!\s*\()|\bimport\.meta\b/m;

/** Returns the type that the nearest package.json declares. Files without one are modules, as in Bun. */
function typeOf(directory: string): unknown {
  for (let at = directory; at !== dirname(at); at = dirname(at)) {
    try {
      const { type = "commonjs" }: { type?: unknown } = JSON.parse(readFileSync(join(at, "package.json"), "utf8"));
      return type;
    } catch {
      // No package.json here, or one that cannot be read.
    }
  }
  return "module";
}
