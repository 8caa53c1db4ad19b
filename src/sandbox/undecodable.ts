import { readdirSync } from "node:fs";
import { basename, dirname } from "node:path";

/** Checks if a path contains bytes that are not UTF-8, which Node replaces. */
export const isUndecodable = (path: string): boolean => path.includes("\uFFFD");

/** Returns the bytes of a path whose last name may be undecodable; of several such names the first one. */
export function rawPathOf(path: string): Buffer {
  if (!isUndecodable(basename(path))) return Buffer.from(path);
  const name = readdirSync(dirname(path), { encoding: "buffer" }).find((each) => String(each) === basename(path));
  return name ? Buffer.concat([Buffer.from(`${dirname(path)}/`), name]) : Buffer.from(path);
}
