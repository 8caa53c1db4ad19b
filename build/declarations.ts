import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

/**
 * Writes the declarations of these sources and of everything that they import, packages included: those are part of the
 * bundle, so a user has not installed them; `peers` are not, and stay imports. Returns the paths of the packages' declarations.
 */
export function writeDeclarations(
  root: string,
  target: string,
  sources: readonly string[],
  peers: readonly string[],
): string[] {
  const emitted = mkdtempSync(join(tmpdir(), "toolgate-types-"));
  try {
    emit(root, emitted, sources);
    return collect(root, emitted, target, { sources, peers });
  } finally {
    rmSync(emitted, { recursive: true });
  }
}

function emit(root: string, target: string, sources: readonly string[]): void {
  const project = join(target, "tsconfig.json");
  const options = {
    extends: join(root, "tsconfig.json"),
    compilerOptions: {
      noEmit: false,
      declaration: true,
      emitDeclarationOnly: true,
      outDir: target,
      rootDir: root,
      typeRoots: [join(root, "node_modules/@types")],
    },
    include: [],
    files: sources.map((source) => join(root, source)),
  };
  writeFileSync(project, JSON.stringify(options));
  // Internal modules may infer types that cannot be named: of those, nothing is collected, or the next step fails.
  spawnSync(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", project], { stdio: "ignore" });
}

/** Copies declarations, from the sources' own on, along their imports; each import becomes a relative path. */
function collect(root: string, emitted: string, target: string, of: Record<"sources" | "peers", readonly string[]>) {
  const own = (source: string) => join(emitted, source.replace(/\.ts$/, ".d.ts"));
  const packages = join(root, "node_modules");
  const placeOf = (file: string) =>
    join(target, file.startsWith(packages) ? join("packages", relative(packages, file)) : relative(emitted, file));
  const waiting = of.sources.map(own);
  const seen = new Set(waiting);
  for (const file of waiting) {
    const place = placeOf(file);
    const text = readFileSync(file, "utf8").replace(importedName, (whole, before, name, after) => {
      const found = of.peers.includes(name) ? undefined : resolveDeclaration(name, file, root);
      if (found === undefined) return whole;
      if (!seen.has(found)) waiting.push(found);
      seen.add(found);
      const path = relative(dirname(place), placeOf(found)).replace(/\.d\.ts$/, ".js");
      return `${before}${path.startsWith(".") ? path : `./${path}`}${after}`;
    });
    mkdirSync(dirname(place), { recursive: true });
    writeFileSync(place, text);
  }
  return waiting.filter((file) => file.startsWith(packages));
}

/** The file that declares an imported module; undefined for Node's own. */
function resolveDeclaration(name: string, importer: string, root: string): string | undefined {
  if (name.startsWith("node:")) return undefined;
  if (name.startsWith(".")) return join(dirname(importer), name).replace(/\.[jt]s$/, ".d.ts");
  const parent = importer.startsWith(root) ? importer : join(root, "package.json");
  const module = import.meta.resolve(name, pathToFileURL(parent).href);
  return module.startsWith("node:") ? undefined : fileURLToPath(module).replace(/\.js$/, ".d.ts");
}

// Not in comments: a statement starts its line.
const importedName = /((?:^(?:import|export)\b[^;"]*?\bfrom\s*|^import\s*|\bimport\()")([^"]+)(")/gm;
