import { moduleFormat } from "./module-format.ts";

/** A result of loading a module: source, or exports. */
type LoadedModule = { contents: string; loader: "js" | "jsx" | "ts" | "tsx" } | { exports: object; loader: "object" };

/** The part of Bun that loading needs; its types are no dependency. */
export interface BunRuntime {
  plugin(plugin: {
    name: string;
    setup(build: {
      module(specifier: string, load: () => LoadedModule): void;
      onResolve(
        constraints: { filter: RegExp },
        resolve: (args: { path: string; importer: string }) => { path: string; namespace: string },
      ): void;
      onLoad(constraints: { filter: RegExp; namespace?: string }, load: (args: { path: string }) => LoadedModule): void;
    }): void;
  }): void;
  resolveSync(specifier: string, directory: string): string;
  Transpiler: new (options: {
    loader: string;
  }) => {
    scan(source: string): { imports: { path: string; kind: string }[]; exports: string[] };
    transformSync(source: string): string;
  };
}

/** Returns the runtime. Throws under another one. */
export function bunRuntime(): BunRuntime {
  const bun: unknown = Reflect.get(globalThis, "Bun");
  if (typeof bun === "object" && bun !== null) return bun as BunRuntime;
  throw new Error("this process does not run under Bun");
}

/** Reads what a module imports, and of which kind it is. */
export function scanModule(bun: BunRuntime, path: string, source: string) {
  const loader = /\.[cm]?ts$/.test(path) ? "ts" : path.endsWith(".tsx") ? "tsx" : path.endsWith(".jsx") ? "jsx" : "js";
  const { imports, exports } = scanSafely(new bun.Transpiler({ loader }), source);
  const isModule = exports.length > 0 || imports.some(({ kind }) => kind === "import-statement");
  const isCommonJs = !isModule && moduleFormat(path, source) === "commonjs";
  return { loader, isCommonJs, imports: imports.map(({ path: specifier }) => specifier) } as const;
}

/** A source that cannot be parsed imports nothing here; importing it reports where. */
function scanSafely(transpiler: InstanceType<BunRuntime["Transpiler"]>, source: string) {
  try {
    return transpiler.scan(source);
  } catch {
    return { imports: [], exports: ["default"] };
  }
}
