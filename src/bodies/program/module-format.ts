import { readFileSync } from "node:fs";
import { dirname, extname, join } from "node:path";

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
