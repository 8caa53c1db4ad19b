import { readFileSync } from "node:fs";
import { dirname, extname } from "node:path";
import * as zod from "zod";
import { messageOf } from "../body/message-of.ts";
import * as plugin from "../tool/plugin.ts";
import { createCommonJs } from "./bun-commonjs.ts";
import { type BunRuntime, bunRuntime, scanModule } from "./bun-runtime.ts";
import { createLoadedFiles, type LoadedFiles } from "./loaded-files.ts";
import type { ModuleLoader } from "./module-loader.ts";
import { LoadFailure } from "./problem.ts";

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
