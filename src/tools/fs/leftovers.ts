import { lstat, readdir, rm } from "node:fs/promises";
import { inDirectory, openDirectory } from "./open-file.ts";

/** The name of a file that is written before it takes its place. */
export const temporaryName = (id: string) => `.toolgate-${id}`;

/** What such names have in common, as a glob. */
export const temporaryGlob = temporaryName("????????-????-4???-????-????????????");
const isTemporary = (name: string) => /^\.toolgate-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(name);

/** No write takes as long as this: one that is younger may be another replica's, which goes on. */
const maxWriteMs = 600_000;
const maxKnown = 10_000;

/** Removes what writes left in directories when they were killed. */
export function createLeftovers({ now }: { now(): number }) {
  const clean = new Set<string>();

  async function removeFrom(absolute: string): Promise<boolean> {
    using directory = openDirectory(absolute);
    let isClean = true;
    for (const name of (await readdir(directory.path)).filter(isTemporary)) {
      const path = inDirectory(directory, name);
      // Only the kernel sets the time of the last change, so no tool makes a file look old.
      if (now() - (await lstat(path)).ctimeMs > maxWriteMs) await rm(path);
      else isClean = false;
    }
    return isClean;
  }

  return {
    /** Looks through a directory, once unless something in it is too young to tell; what it cannot remove stays. */
    async removeFrom(absolute: string): Promise<void> {
      if (clean.has(absolute)) return;
      const isClean = await removeFrom(absolute).catch(() => false);
      if (clean.size === maxKnown) clean.clear();
      if (isClean) clean.add(absolute);
    },
  };
}
