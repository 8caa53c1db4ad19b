/** A name in a folder, and what stands there. */
export interface Entry {
  name: string;
  isDirectory: boolean;
  isLink: boolean;
}

/** What is in a folder; nothing if it is no folder or cannot be read. */
export type ListFolder = (folder: string) => Promise<readonly Entry[]>;

const maxPaths = 2_000;

/**
 * The paths that bash may put in the place of a glob, and the glob itself, which it keeps where none fits. It may name
 * too many, never too few: a set in brackets stands for any character. Nothing if there are more than can be judged.
 */
export async function pathsOf(glob: string, base: string, list: ListFolder): Promise<string[] | undefined> {
  const parts = glob.split("/");
  let paths = [""];
  for (const [i, part] of parts.entries()) {
    const step = i === 0 ? "" : "/";
    if (!/[*?[]/.test(part)) {
      paths = paths.map((path) => `${path}${step}${part}`);
      continue;
    }
    const fits = partMatcher(part);
    const found: string[] = [];
    for (const path of paths) {
      const folder = glob.startsWith("/") ? `${path}/` : `${base}/${path}`;
      const names = [...(await list(folder)).map(({ name }) => name), ".", ".."].filter(fits);
      found.push(...names.map((name) => `${path}${step}${name}`));
      if (found.length > maxPaths) return undefined;
    }
    paths = found;
  }
  return [...paths, glob];
}

function partMatcher(part: string): (name: string) => boolean {
  const fits = nameMatcher(part);
  const isHidden = part.startsWith(".") || part.startsWith("[");
  return (name) => (isHidden || !name.startsWith(".")) && fits(name);
}

/** Whether a name fits a pattern, or may: a set in brackets stands for any character. */
export function nameMatcher(part: string): (name: string) => boolean {
  const pattern = part
    .replace(/\[[!^]?\]?[^\]]*\]/g, "?")
    .replace(/[.+^${}()|[\]\\]/g, "\\$&")
    .replace(/\*+/g, "[^]*")
    .replaceAll("?", "[^]");
  const expression = new RegExp(`^${pattern}$`, "iu");
  return (name) => expression.test(name);
}
