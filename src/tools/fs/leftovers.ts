import { lstat, readdir, rm } from "node:fs/promises";
import { inDirectory, openDirectory } from "../../tool/open-file.ts";

/** Makes the name of a temporary file, which is written before it is renamed. */
export const temporaryName = (id: string) => `.toolgate-${id}`;

/** Glob that matches the names of temporary files. */
export const temporaryGlob = temporaryName("????????-????-4???-????-????????????");
const isTemporary = (name: string) => /^\.toolgate-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(name);

/** Maximum duration of a write: a younger file may belong to a write of another replica. */
const maxWriteMs = 600_000;
const maxKnown = 10_000;

/** Removes temporary files of killed writes. */
export function createLeftovers({ now }: { now(): number }) {
  const clean = new Set<string>();

  async function removeFrom(absolute: string): Promise<boolean> {
    using directory = openDirectory(absolute);
    let isClean = true;
    for (const name of (await readdir(directory.path)).filter(isTemporary)) {
      const path = inDirectory(directory, name);
      // Only the kernel sets ctime, so that no tool can make a file look old.
      if (now() - (await lstat(path)).ctimeMs > maxWriteMs) await rm(path);
      else isClean = false;
    }
    return isClean;
  }

  return {
    /** Cleans a directory once, or again while it holds young temporary files. Ignores files that it cannot remove. */
    async removeFrom(absolute: string): Promise<void> {
      if (clean.has(absolute)) return;
      const isClean = await removeFrom(absolute).catch(() => false);
      if (clean.size === maxKnown) clean.clear();
      if (isClean) clean.add(absolute);
    },
  };
}
