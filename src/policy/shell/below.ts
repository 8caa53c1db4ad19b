import { join } from "node:path";
import type { Below } from "./effects.ts";
import { type ListDirectory, nameMatcher } from "./glob.ts";

/** Files and links below a directory, by their path relative to it. */
export interface FoundFiles {
  files: string[];
  links: string[];
  /** There are more entries than were searched. */
  more: boolean;
}

const maxEntries = 100_000;

/** Lists the files and links below a directory, as far as a command reaches them. */
export async function filesBelow(directory: string, reach: Below, list: ListDirectory): Promise<FoundFiles> {
  const found: FoundFiles = { files: [], links: [], more: false };
  const patterns = (reach.only ?? []).map(nameMatcher);
  const isReached = (name: string) => patterns.length === 0 || patterns.some((meets) => meets(name));
  const ahead = [""];
  let seen = 0;
  for (let at = ahead.pop(); at !== undefined; at = ahead.pop()) {
    for (const { name, isDirectory, isLink } of await list(join(directory, at))) {
      seen += 1;
      if (seen > maxEntries) return { ...found, more: true };
      if (name.startsWith(".") && !reach.hidden) continue;
      const path = at === "" ? name : `${at}/${name}`;
      if (isDirectory && !reach.except?.includes(name)) ahead.push(path);
      if (isLink && reach.links) found.links.push(path);
      if (!isDirectory && !isLink && isReached(name)) found.files.push(path);
    }
  }
  return found;
}
