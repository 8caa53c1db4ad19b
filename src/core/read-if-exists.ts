import { readdirSync, readFileSync } from "node:fs";

/** Reads a text; undefined if the file does not exist, as after another process has removed it. */
export function readIfExists(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return undefined;
    throw error;
  }
}

/** Reads a text; empty if it cannot be read. */
export function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

/** Lists the names in a directory; none if it cannot be read. */
export function listNames(directory: string): string[] {
  try {
    return readdirSync(directory);
  } catch {
    return [];
  }
}

/** Throws an error again that says that no more files can be opened; returns no text for any other. */
export function emptyUnlessFull(error: unknown): "" {
  if (error instanceof Error && "code" in error && (error.code === "EMFILE" || error.code === "ENFILE")) throw error;
  return "";
}
