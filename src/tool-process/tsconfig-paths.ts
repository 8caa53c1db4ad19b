import { dirname } from "node:path";
import { createPathsMatcher, getTsconfig } from "get-tsconfig";

/** Returns the paths that an import may stand for by `paths` of the nearest tsconfig.json or jsconfig.json; empty if none fits. */
export type PathAliases = (importer: string, specifier: string) => readonly string[];

/** Creates it; each configuration is read once. */
export function createPathAliases(): PathAliases {
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
