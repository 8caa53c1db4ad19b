import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";

/** Returns the SHA-256 of files as they are now, by path; an empty text for those that cannot be read. */
export async function hashFiles(paths: readonly string[]): Promise<ReadonlyMap<string, string>> {
  const hash = async (path: string) => await readFile(path).then(sha256, () => "");
  return new Map(await Promise.all(paths.map(async (path) => [path, await hash(path)] as const)));
}

const sha256 = (content: Uint8Array) => createHash("sha256").update(content).digest("hex");
