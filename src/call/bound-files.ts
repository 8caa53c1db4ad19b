import { createHash } from "node:crypto";
import { constants } from "node:fs";
import { access, type FileHandle, open, stat } from "node:fs/promises";
import { join } from "node:path";

/** The file that a shell runs for a name: the first of that name, in the folders of a PATH, that can be run. */
export async function findProgram(name: string, searchPath: string): Promise<string | undefined> {
  if (name === "" || name.includes("/")) return undefined;
  for (const folder of searchPath.split(":").filter((folder) => folder !== "")) {
    const path = join(folder, name);
    const isFile = await stat(path).then(
      (found) => found.isFile(),
      () => false,
    );
    if (isFile && (await canRun(path))) return path;
  }
  return undefined;
}

async function canRun(path: string): Promise<boolean> {
  return await access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}

/** Files from this size on are not read again while the file system says that nothing has changed. */
const large = 1_048_576;
const maxStored = 256;

/** Makes what names the content of files. */
export function createHashes() {
  const kept = new Map<string, string>();

  /** SHA-256 of a regular file's content, or why there is none: a file that appears or goes away is a change, too. */
  async function of(path: string): Promise<string> {
    try {
      // Not blocking, so that a FIFO is seen for what it is instead of waiting for its writer.
      await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
      const found = await file.stat({ bigint: true });
      if (!found.isFile()) return "not a file";
      if (found.size < large) return await hashOf(file);
      const { dev, ino, size, mtimeNs, ctimeNs } = found;
      const name = [dev, ino, size, mtimeNs, ctimeNs].join(" ");
      const hash = kept.get(name) ?? (await hashOf(file));
      if (kept.size >= maxStored) kept.clear();
      kept.set(name, hash);
      return hash;
    } catch (cause) {
      return cause instanceof Error && "code" in cause ? String(cause.code) : "unreadable";
    }
  }

  return { of };
}

async function hashOf(file: FileHandle): Promise<string> {
  const hash = createHash("sha256");
  for await (const chunk of file.createReadStream({ autoClose: false })) hash.update(chunk);
  return hash.digest("hex");
}
