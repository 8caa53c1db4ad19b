import { constants, readdirSync, readFileSync } from "node:fs";
import { open } from "node:fs/promises";

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

/**
 * Reads a regular file of at most so many bytes. Without O_NONBLOCK the opening of a FIFO, which a command can put in the place of
 * any file, would wait for a writer, and hold one of the four threads of the pool meanwhile.
 */
export async function readRegularFile(path: string, maxBytes: number): Promise<Buffer> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  const found = await file.stat();
  if (!found.isFile()) throw new Error(`${path} is not a file`);
  if (found.size > maxBytes) throw new Error(`${path} has more than ${maxBytes} bytes`);
  const { buffer, bytesRead } = await file.read(Buffer.alloc(found.size), 0, found.size, 0);
  return buffer.subarray(0, bytesRead);
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
