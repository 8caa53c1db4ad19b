import { readFileSync } from "node:fs";

/** Reads a text; undefined if the file does not exist, as after another process has removed it. */
export function readIfExists(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return undefined;
    throw error;
  }
}
