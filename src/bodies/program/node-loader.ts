import { existsSync, readFileSync, statSync } from "node:fs";
import { type ResolveFnOutput, registerHooks } from "node:module";
import { dirname, extname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { createPathsMatcher, getTsconfig } from "get-tsconfig";
import { transform } from "sucrase";
import { assets, isCheckout } from "../../core/assets.ts";
import { needsBun } from "../sdk/message-of.ts";
import { importFailure, isPath, LoadFailure, missingModule } from "./load-problem.ts";
import { createLoadedFiles, type ModuleFormat, type ModuleLoader, moduleFormat } from "./loaded-files.ts";

/** Creates the loader of Node: it compiles TypeScript, and resolves imports as Bun does. */
export function createNodeLoader(files: readonly string[], expected: ReadonlyMap<string, string>): ModuleLoader {
  const loaded = createLoadedFiles(files, expected);
  const aliases = createPathAliases();
  const texts = new Set<string>();
  registerHooks({
    resolve(specifier, context, next) {
      const importer = context.parentURL?.startsWith("file:") ? fileURLToPath(context.parentURL) : undefined;
      // Imports of this program and of its libraries are not theirs.
      if (importer === undefined || isOurs(importer)) return next(specifier, context);
      const resolved = resolveImport(specifier, importer, aliases(importer, specifier), (name) => next(name, context));
      if (!resolved.url.startsWith("file:") || isOurs(fileURLToPath(resolved.url))) return resolved;
      loaded.addImport(importer, fileURLToPath(resolved.url));
      // Calls of require have no attributes.
      if (context.importAttributes?.type === "text") texts.add(resolved.url);
      // Here any file may be imported without attributes; those of bundlers are unknown to Node.
      return { ...resolved, importAttributes: {} };
    },
    load(url, context, next) {
      if (!url.startsWith("file:") || isOurs(fileURLToPath(url))) return next(url, context);
      const path = fileURLToPath(url);
      const content = readFileSync(path);
      loaded.addFile(path, content);
      const isText = texts.has(url);
      const read = moduleOf(path, content.toString(), { isText, isRequired: context.conditions.includes("require") });
      // What was read is what runs: Node would read the file again.
      return read ? { ...read, shortCircuit: true } : { ...next(url, context), source: content };
    },
  });
  return {
    async load(path) {
      try {
        return await import(/* @vite-ignore */ pathToFileURL(path).href);
      } catch (error) {
        const known = loaded.files().map((file) => file.path);
        throw (error instanceof SyntaxError && syntaxFailure([path, ...known])) || error;
      }
    },
    digestOf: loaded.digestOf,
    files: loaded.files,
    isImported: loaded.isImported,
  };
}

/** This program with its libraries; a checkout of it may be a workspace, too. */
const own = (isCheckout ? ["src", "gen", "node_modules"] : ["."]).map((name) => join(assets.root, name, "/"));
const isOurs = (path: string) => own.some((directory) => path.startsWith(directory));

/** Types exist only for the compiler, so such an import has no effect, whether the file exists or not. */
const emptyModule = "data:text/javascript,";
const declaration = /\.d\.[cm]?ts$/;

/** Resolves an import of a tool's file: what Node finds, otherwise what bundlers accept, otherwise what this program provides. */
function resolveImport(
  specifier: string,
  importer: string,
  aliased: readonly string[],
  next: (name: string) => ResolveFnOutput,
): ResolveFnOutput {
  if (specifier === "toolgate/plugin") return { url: assets.plugin, shortCircuit: true };
  if (declaration.test(specifier)) return { url: emptyModule, shortCircuit: true };
  if (/^bun(:|$)/.test(specifier))
    throw importFailure(importer, specifier, `${specifier} is a module of Bun: ${needsBun}`);
  for (const path of aliased) {
    const found = existingFile(path);
    if (found !== undefined) return { url: pathToFileURL(found).href, shortCircuit: true };
  }
  try {
    return next(specifier);
  } catch (cause) {
    const found = isPath(specifier)
      ? existingFile(fileURLToPath(new URL(specifier, pathToFileURL(importer))))
      : undefined;
    const url = found === undefined ? providedModules[specifier] : pathToFileURL(found).href;
    if (url !== undefined) return { url, shortCircuit: true };
    const code = cause instanceof Error && "code" in cause ? String(cause.code) : "";
    if (code !== "ERR_MODULE_NOT_FOUND" && code !== "MODULE_NOT_FOUND") throw cause;
    throw missingModule(importer, specifier, code);
  }
}

/** Finds the file that a path without extension, with that of the compiled file, or of a directory stands for. */
function existingFile(path: string): string | undefined {
  const stem = path.replace(/\.([cm]?)js(x?)$/, "");
  const compiled = /\.([cm]?)js(x?)$/.exec(path);
  const sources = compiled ? [`${stem}.${compiled[1]}ts${compiled[2]}`, `${stem}.tsx`] : [];
  const ends = ["", ".ts", ".tsx", ".mts", ".js", ".jsx", ".mjs", ".cjs", ".json"];
  const names = [...ends.map((end) => path + end), ...sources, ...ends.slice(1).map((end) => `${path}/index${end}`)];
  return names.find((name) => existsSync(name) && statSync(name).isFile());
}

/** Makes a module of a file; undefined if Node runs it as it is. */
function moduleOf(
  path: string,
  content: string,
  { isText, isRequired }: { isText: boolean; isRequired: boolean },
): CompiledModule | undefined {
  switch (isText ? ".txt" : extname(path)) {
    case ".ts":
    case ".mts":
    case ".cts":
    case ".tsx":
    case ".jsx":
      return transpile(path, content);
    case ".txt":
    case ".md":
      return { format: "module", source: `export default ${JSON.stringify(content)};` };
    case ".json":
      return isRequired ? undefined : { format: "module", source: jsonModule(path, content) };
    default:
      return undefined;
  }
}

/** Exports the value and, as bundlers do, its fields. */
function jsonModule(path: string, source: string): string {
  const value: unknown = JSON.parse(source);
  const fields = typeof value === "object" && value !== null && !Array.isArray(value) ? Object.keys(value) : [];
  const names = fields.filter((name) => /^[A-Za-z_$][\w$]*$/.test(name) && name !== "default");
  return [
    `const value = ${JSON.stringify(value)};`,
    "export default value;",
    ...names.map((name, index) => `const v${index} = value[${JSON.stringify(name)}]; export { v${index} as ${name} };`),
    `//# sourceURL=${pathToFileURL(path).href}`,
  ].join("\n");
}

/** Modules that tools import even if no package provides them, by URL. */
const providedModules: Readonly<Record<string, string>> = {
  "@opencode-ai/plugin": assets.plugin,
  "@opencode-ai/plugin/tool": assets.plugin,
  zod: assets.zod,
  "zod/v4": assets.zod,
};

/** Returns the paths that an import may stand for by `paths` of the nearest tsconfig.json or jsconfig.json; empty if none fits. */
type PathAliases = (importer: string, specifier: string) => readonly string[];

/** Creates it; each configuration is read once. */
function createPathAliases(): PathAliases {
  const matchers = new Map<string, ReturnType<typeof createPathsMatcher>>();
  return (importer, specifier) => {
    // Packages are compiled elsewhere, where theirs does not apply.
    if (/^[./]|^[a-z]+:/.test(specifier) || importer.includes("/node_modules/")) return [];
    const directory = dirname(importer);
    if (!matchers.has(directory)) matchers.set(directory, matcherOf(directory));
    return matchers.get(directory)?.(specifier) ?? [];
  };
}

function matcherOf(directory: string) {
  try {
    const found = getTsconfig(directory) ?? getTsconfig(directory, "jsconfig.json");
    return found && createPathsMatcher(found);
  } catch (cause) {
    // An `extends` that is not installed concerns the compiler; imports without an alias still work.
    console.error(
      `tsconfig.json of ${directory} is ignored: ${cause instanceof Error ? cause.message : String(cause)}`,
    );
    return null;
  }
}

/** A module as Node runs it. */
interface CompiledModule {
  format: ModuleFormat;
  source: string;
}

/**
 * Compiles TypeScript and JSX to the JavaScript of Node. Unlike Node itself it compiles enums and parameter properties, and removes
 * imports of types. Lines stay where they are, so errors name the right one.
 */
function transpile(path: string, content: string): CompiledModule {
  const code = compile(path, content);
  return { format: moduleFormat(path, code), source: code };
}

/** Finds the file in which plain JavaScript has a syntax error, which Node reports without its place. */
function syntaxFailure(paths: readonly string[]): LoadFailure | undefined {
  for (const path of paths.filter((path) => /\.[cm]?js$/.test(path))) {
    try {
      compile(path, readFileSync(path, "utf8"));
    } catch (error) {
      if (error instanceof LoadFailure) return error;
    }
  }
  return undefined;
}

function compile(path: string, content: string): string {
  const isScript = /\.[cm]?ts$/.test(path);
  try {
    return transform(content, {
      transforms: isScript ? ["typescript"] : path.endsWith(".tsx") ? ["typescript", "jsx"] : ["jsx"],
      jsxRuntime: "automatic",
      production: true,
      // Node runs all of the language; only what TypeScript adds is compiled.
      disableESTransforms: true,
      preserveDynamicImport: true,
    }).code;
  } catch (error) {
    const place: { line?: unknown } = error instanceof Error && "loc" in error ? Object(error.loc) : {};
    const message = error instanceof Error ? error.message : String(error);
    throw new LoadFailure(path, Number(place.line ?? 0), message.replace(/ \(\d+:\d+\)$/, ""));
  }
}
