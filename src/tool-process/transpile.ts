import { readFileSync } from "node:fs";
import { transform } from "sucrase";
import { type ModuleFormat, moduleFormat } from "./module-format.ts";
import { LoadFailure } from "./problem.ts";

/** A module as Node runs it. */
export interface CompiledModule {
  format: ModuleFormat;
  source: string;
}

/**
 * Compiles TypeScript and JSX to the JavaScript of Node. Unlike Node itself it compiles enums and parameter properties, and removes
 * imports of types. Lines stay where they are, so errors name the right one.
 */
export function transpile(path: string, content: string): CompiledModule {
  const code = compile(path, content);
  return { format: moduleFormat(path, code), source: code };
}

/** Finds the file in which plain JavaScript has a syntax error, which Node reports without its place. */
export function syntaxFailure(paths: readonly string[]): LoadFailure | undefined {
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
