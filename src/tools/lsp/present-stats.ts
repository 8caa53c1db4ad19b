import { type BigIntStats, lstatSync } from "node:fs";

/** Returns the state of a path now; undefined if there is nothing, below a file too, or if it cannot be read. */
export function presentStats(path: string): BigIntStats | undefined {
  try {
    return lstatSync(path, { bigint: true, throwIfNoEntry: false });
  } catch {
    return undefined;
  }
}
