import { execFileSync } from "node:child_process";
import { closeSync, openSync, writeSync } from "node:fs";
import { join } from "node:path";

/** Faults of a disk, and how preload.c numbers them. */
export const diskFaults = [
  ["fails once with EIO", 1],
  ["finds no space from then on", 2],
  ["is short, and the next finds no space", 3],
] as const;

/** A disk that loses writes: no store can survive it. */
export const lostWrites = 4;

/** Builds preload.c into a folder; returns the path of the library. */
export function buildPreload(folder: string): string {
  const library = join(folder, "preload.so");
  const source = join(import.meta.dirname, "preload.c");
  execFileSync("gcc", ["-shared", "-fPIC", "-O1", "-Wall", "-o", library, source, "-ldl"]);
  return library;
}

/** Lets the operation of this number, counted from now on, be the first that fails; 0: none. */
export function arm(controlFile: string, at: number, kind: number): void {
  const bytes = Buffer.alloc(16);
  bytes.writeInt32LE(at, 4);
  bytes.writeInt32LE(kind, 8);
  const file = openSync(controlFile, "r+");
  writeSync(file, bytes, 0, 16, 0);
  closeSync(file);
}
