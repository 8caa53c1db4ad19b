import { readFileSync } from "node:fs";
import { createRequire, isBuiltin } from "node:module";
import { dirname } from "node:path";
import { compileFunction } from "node:vm";
import { messageOf } from "../body/message-of.ts";
import { type BunRuntime, scanModule } from "./bun-runtime.ts";
import type { LoadedFiles } from "./loaded-files.ts";
import { LoadFailure } from "./problem.ts";

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
export function createCommonJs(bun: BunRuntime, loaded: LoadedFiles): (path: string) => unknown {
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
