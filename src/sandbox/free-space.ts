import { statfsSync } from "node:fs";

/** Free space of a disk, and the part of it that commands leave to others. */
export interface FreeSpace {
  readonly freeBytes: number;
  readonly freeFiles: number;
  readonly reservedBytes: number;
  readonly reservedFiles: number;
}

/** At most this much is reserved. */
const maxReserve = { bytes: 1024 ** 3, files: 100_000 };
/** Part of a small disk that is reserved. */
const reservedPart = 1 / 20;

/** Reads the free space of the disk of a directory; undefined if it is gone. */
export function freeSpaceOf(directory: string): FreeSpace | undefined {
  try {
    const { bsize, blocks, bavail, files, ffree } = statfsSync(directory);
    return {
      freeBytes: bavail * bsize,
      // Some file systems make files as long as there is space, and report none.
      freeFiles: files === 0 ? Infinity : ffree,
      reservedBytes: Math.min(maxReserve.bytes, blocks * bsize * reservedPart),
      reservedFiles: Math.min(maxReserve.files, files * reservedPart),
    };
  } catch {
    return undefined;
  }
}

/** Checks if so little is left that the reserve may be reached soon. */
export const isScarce = ({ freeBytes, freeFiles, reservedBytes, reservedFiles }: FreeSpace) =>
  freeBytes < reservedBytes * 2 || freeFiles < reservedFiles * 2;

/** Describes a disk that has lost some of its reserve since an earlier look; undefined if it has lost none, or little. */
export function lostReserve(before: FreeSpace, now: FreeSpace): string | undefined {
  const { freeBytes, freeFiles, reservedBytes, reservedFiles } = now;
  if (freeBytes < reservedBytes && freeBytes < before.freeBytes - reservedBytes * noticedPart)
    return `has less than ${Math.ceil(reservedBytes / 1024 ** 2)} MiB left`;
  if (freeFiles < reservedFiles && freeFiles < before.freeFiles - reservedFiles * noticedPart)
    return `can hold fewer than ${Math.ceil(reservedFiles)} more files`;
  return undefined;
}

/** A loss of a smaller part of the reserve is none yet, so that commands which write little go on. */
const noticedPart = 1 / 16;

/** Returns the state with which the next look compares if nothing was lost: in the reserve small losses add up. */
export function comparedNext(before: FreeSpace | undefined, now: FreeSpace): FreeSpace {
  const isInReserve = now.freeBytes < now.reservedBytes || now.freeFiles < now.reservedFiles;
  if (before === undefined || !isInReserve) return now;
  return {
    ...now,
    freeBytes: Math.max(now.freeBytes, before.freeBytes),
    freeFiles: Math.max(now.freeFiles, before.freeFiles),
  };
}
