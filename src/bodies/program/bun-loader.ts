import { readFileSync } from "node:fs";
import { createRequire, isBuiltin } from "node:module";
import { dirname, extname } from "node:path";
import { compileFunction } from "node:vm";
import * as zod from "zod";
import * as plugin from "../../tool/plugin.ts";
import { messageOf } from "../sdk/message-of.ts";
import { LoadFailure } from "./load-problem.ts";
import { createLoadedFiles, type LoadedFiles, type ModuleLoader, moduleFormat } from "./loaded-files.ts";

const code = String.raw`\.(?:[cm]?[jt]sx?|json)$`;

/** Creates the loader of Bun, which runs TypeScript as it is. Code of `expected` is run as it was checked, all other natively. */
export function createBunLoader(files: readonly string[], expected: ReadonlyMap<string, string>): ModuleLoader {
  const bun = bunRuntime();
  const loaded = createLoadedFiles(files, expected);
  bun.plugin({
    name: "toolgate",
    setup(build) {
      provideModules(bun, build, files);
      // Types exist only for the compiler, so such an import has no effect, whether the file exists or not.
      build.onResolve({ filter: /\.d\.[cm]?ts$/ }, ({ path }) => ({ path, namespace: "types" }));
      build.onLoad({ filter: /.*/, namespace: "types" }, () => ({ exports: {}, loader: "object" }));
      build.onLoad({ filter: /\.(?:txt|md)$/ }, ({ path }) => {
        const content = readFileSync(path);
        loaded.addFile(path, content);
        return { exports: { default: content.toString() }, loader: "object" };
      });
      if (expected.size === 0) return;
      const commonJs = createCommonJs(bun, loaded);
      const below = new RegExp(`^${escapeRegExp(commonDirectory([...expected.keys()]))}/.*${code}`);
      build.onLoad({ filter: below }, ({ path }) => moduleOf(bun, loaded, commonJs, path));
    },
  });
  return {
    async load(path) {
      addModule(bun, loaded, path);
      try {
        return await import(/* @vite-ignore */ path);
      } catch (error) {
        // Bun has no source map of modules from a hook: a line of a stack would be another one.
        const isRun =
          error instanceof Error && !(error instanceof LoadFailure) && !("specifier" in error || "position" in error);
        throw isRun && expected.size > 0 ? new LoadFailure(path, 0, messageOf(error)) : error;
      }
    },
    digestOf: loaded.digestOf,
    files: loaded.files,
    isImported: loaded.isImported,
  };
}

type Build = Parameters<Parameters<BunRuntime["plugin"]>[0]["setup"]>[0];

/** Provides what tools import even if no package does. */
function provideModules(bun: BunRuntime, build: Build, files: readonly string[]): void {
  const provided = { "@opencode-ai/plugin": plugin, "@opencode-ai/plugin/tool": plugin, zod, "zod/v4": zod };
  build.module("toolgate/plugin", () => ({ exports: { ...plugin }, loader: "object" }));
  for (const [name, exports] of Object.entries(provided)) {
    const isInstalled = files.some((file) => resolveImport(bun, name, file) !== undefined);
    if (!isInstalled) build.module(name, () => ({ exports: { ...exports, default: exports }, loader: "object" }));
  }
}

function moduleOf(bun: BunRuntime, loaded: LoadedFiles, commonJs: ReturnType<typeof createCommonJs>, path: string) {
  const content = readFileSync(path);
  loaded.addFile(path, content);
  const source = content.toString();
  if (path.endsWith(".json")) {
    const value: unknown = JSON.parse(source);
    return { exports: { ...Object(value), default: value }, loader: "object" } as const;
  }
  const { loader, isCommonJs } = scanModule(bun, path, source);
  if (!isCommonJs) return { contents: source, loader };
  const exports: unknown = commonJs(path);
  const isCompiled = typeof exports === "object" && exports !== null && "__esModule" in exports;
  return { exports: isCompiled ? exports : { ...Object(exports), default: exports }, loader: "object" } as const;
}

/** Records a file and the local files that it imports, directly or not. */
function addModule(bun: BunRuntime, loaded: LoadedFiles, path: string): void {
  const content = readFileSync(path);
  loaded.addFile(path, content);
  if (!new RegExp(code).test(path) || extname(path) === ".json") return;
  for (const specifier of scanModule(bun, path, content.toString()).imports) {
    const imported = resolveImport(bun, specifier, path);
    if (imported === undefined || !imported.startsWith("/") || imported.includes("/node_modules/")) continue;
    const isKnown = loaded.has(imported);
    loaded.addImport(path, imported);
    if (!isKnown) addModule(bun, loaded, imported);
  }
}

/** Returns the file that an import stands for; undefined if it cannot be resolved: importing it then fails. */
function resolveImport(bun: BunRuntime, specifier: string, importer: string): string | undefined {
  try {
    return bun.resolveSync(specifier, dirname(importer));
  } catch {
    return undefined;
  }
}

/** Returns the longest directory above all paths. */
function commonDirectory(paths: readonly string[]): string {
  const [first = "", ...others] = paths.map(dirname);
  let common = first;
  while (!others.every((path) => path === common || path.startsWith(`${common}/`))) common = dirname(common);
  return common === "/" ? "" : common;
}

const escapeRegExp = (text: string) => text.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");

interface CommonJsModule {
  exports: unknown;
  id: string;
  filename: string;
  loaded: boolean;
}

/**
 * Creates the function that runs a CommonJS module of checked content and returns its exports. Bun's hook takes modules of the
 * other kind only, and left to itself Bun would read the file again.
 */
function createCommonJs(bun: BunRuntime, loaded: LoadedFiles): (path: string) => unknown {
  const modules = new Map<string, CommonJsModule>();
  const isCommonJs = (path: string) =>
    /\.(?:[cm]?[jt]s|[jt]sx)$/.test(path) && scanModule(bun, path, readFileSync(path, "utf8")).isCommonJs;

  function run(path: string): unknown {
    const known = modules.get(path);
    if (known) return known.exports;
    const content = readFileSync(path);
    loaded.addFile(path, content);
    if (path.endsWith(".json")) return JSON.parse(content.toString());
    const module: CommonJsModule = { exports: {}, id: path, filename: path, loaded: false };
    // Modules may require each other in a circle.
    modules.set(path, module);
    const native = createRequire(path);
    const requireModule = (specifier: string): unknown => {
      const found = isBuiltin(specifier) || /^bun(:|$)/.test(specifier) ? undefined : native.resolve(specifier);
      return found !== undefined && (found.endsWith(".json") || isCommonJs(found)) ? run(found) : native(specifier);
    };
    const { loader } = scanModule(bun, path, content.toString());
    const source =
      loader === "js" ? content.toString() : new bun.Transpiler({ loader }).transformSync(content.toString());
    const names = ["exports", "require", "module", "__filename", "__dirname"];
    const body = compile(path, source, names);
    body.call(module.exports, module.exports, Object.assign(requireModule, native), module, path, dirname(path));
    module.loaded = true;
    return module.exports;
  }
  return run;
}

function compile(path: string, source: string, names: string[]) {
  try {
    return compileFunction(source.replace(/^#!/, "//"), names, { filename: path });
  } catch (error) {
    throw new LoadFailure(path, 0, `it cannot be compiled: ${messageOf(error)}`);
  }
}

/** A result of loading a module: source, or exports. */
type LoadedModule = { contents: string; loader: "js" | "jsx" | "ts" | "tsx" } | { exports: object; loader: "object" };

/** The part of Bun that loading needs; its types are no dependency. */
interface BunRuntime {
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
function bunRuntime(): BunRuntime {
  const bun: unknown = Reflect.get(globalThis, "Bun");
  if (typeof bun === "object" && bun !== null) return bun as BunRuntime;
  throw new Error("this process does not run under Bun");
}

/** Reads what a module imports, and of which kind it is. */
function scanModule(bun: BunRuntime, path: string, source: string) {
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
