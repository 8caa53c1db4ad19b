import { readFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { assets } from "../../core/assets.ts";
import { messageOf } from "../sdk/message-of.ts";

/** A reason why a file cannot be loaded, with its place; `line` is 0 if it is not known. */
export interface LoadProblem {
  path: string;
  line: number;
  reason: string;
}

/** A file that cannot be loaded, with the place of the cause. */
export class LoadFailure extends Error {
  override name = "LoadFailure";
  readonly path: string;
  readonly line: number;
  readonly code: string | undefined;
  constructor(path: string, line: number, message: string, code?: string) {
    super(message);
    this.path = path;
    this.line = line;
    this.code = code;
  }
}

/** Makes the failure of an import that cannot be served. Its place is that of the import. */
export function importFailure(importer: string, specifier: string, message: string, code = "ERR_MODULE_NOT_FOUND") {
  return new LoadFailure(importer, lineOf(importer, specifier), message, code);
}

/** Returns the line that installs a package where a file finds it. */
function needsPackage(name: string, importer: string): string {
  return `it needs the package ${name}: npm install --prefix ${homeOf(importer)} ${name}`;
}

/** Locates an error in the files of tools. `path` is the file that was loaded. */
export function problemOf(path: string, error: unknown): LoadProblem {
  const reason = messageOf(error);
  if (error instanceof LoadFailure) return { path: error.path, line: error.line, reason };
  const missing = missingOf(error);
  if (missing) return { path: missing.path, line: missing.line, reason: missing.message };
  return { ...(placeOf(error) ?? { path, line: 0 }), reason };
}

/** Returns the failure of Bun's resolver, which names importer and import. */
function missingOf(error: unknown): LoadFailure | undefined {
  if (typeof error !== "object" || error === null || !("specifier" in error && "referrer" in error)) return undefined;
  return missingModule(String(error.referrer), String(error.specifier));
}

/** Makes the failure of an import of a file or package that does not exist. */
export function missingModule(importer: string, specifier: string, code?: string): LoadFailure {
  if (isPath(specifier)) return importFailure(importer, specifier, `there is no file ${specifier}`, code);
  const name = specifier.split("/", specifier.startsWith("@") ? 2 : 1).join("/");
  return importFailure(importer, specifier, needsPackage(name, importer), code);
}

/** Reports whether an import names a file. */
export const isPath = (specifier: string) => /^(\.\.?)?\//.test(specifier) || specifier === "." || specifier === "..";

function placeOf(error: unknown): Omit<LoadProblem, "reason"> | undefined {
  if (typeof error !== "object" || error === null) return undefined;
  // Bun's errors of its parser and resolver.
  const position: unknown = Reflect.get(error, "position");
  if (typeof position === "object" && position !== null && "file" in position && "line" in position) {
    return { path: String(position.file), line: Number(position.line) };
  }
  // Stack frames name a URL or a path; above an excerpt of the source stands a path.
  const place = /(?:^|[\s(])(file:\/\/)?(\/[^\n?:)]*):(\d+)/gm;
  for (const [, isUrl, name = "", line] of String(Reflect.get(error, "stack") ?? "").matchAll(place)) {
    const at = isUrl ? fileURLToPath(`file://${name}`) : name;
    // Frames of the service itself do not locate an error in their file.
    if (!at.startsWith(assets.root) && !at.includes("/node_modules/")) return { path: at, line: Number(line) };
  }
  return undefined;
}

/** Returns the line in which a file names a module; 0 if none does. */
function lineOf(importer: string, specifier: string): number {
  try {
    const lines = readFileSync(importer, "utf8").split("\n");
    return lines.findIndex((line) => /\b(?:import|from|require)\b/.test(line) && line.includes(specifier)) + 1;
  } catch {
    return 0;
  }
}

/** Returns the nearest directory above a file that has packages; without one, its own. */
function homeOf(importer: string): string {
  for (let at = dirname(importer); at !== dirname(at); at = dirname(at)) {
    if (basename(at) === ".opencode" || hasFile(at, "package.json")) return at;
  }
  return dirname(importer);
}

function hasFile(directory: string, name: string): boolean {
  try {
    readFileSync(join(directory, name));
    return true;
  } catch {
    return false;
  }
}
