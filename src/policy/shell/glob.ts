/** An entry of a directory. */
export interface Entry {
  name: string;
  isDirectory: boolean;
  isLink: boolean;
}

/** Lists a directory; empty if it cannot be read or is not a directory. */
export type ListDirectory = (directory: string) => Promise<readonly Entry[]>;

const maxPaths = 2_000;

/**
 * Returns the paths to which bash may expand a glob, and the glob itself, which bash keeps if no path matches. May return
 * too many, never too few: a set in brackets stands for any character. Undefined if there are more than can be judged.
 */
export async function pathsOf(glob: string, base: string, list: ListDirectory): Promise<string[] | undefined> {
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
      const directory = glob.startsWith("/") ? `${path}/` : `${base}/${path}`;
      const names = [...(await list(directory)).map(({ name }) => name), ".", ".."].filter(fits);
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

/** Compiles a pattern for names. May match too many names: a set in brackets stands for any character, an open one for any text. */
export function nameMatcher(part: string): (name: string) => boolean {
  const pattern = part.replace(
    /\\([\s\S])|\[[!^]?\]?(?:\[[:.=][^\]]*[:.=]\]|\\[\s\S]|[^\]\\])*(\]?)|\*+|\?|[\s\S]/gu,
    (found, escaped, end) => {
      if (escaped !== undefined) return quoted(escaped);
      if (found.startsWith("[")) return end === "" ? "[^]*" : "[^]";
      if (found.startsWith("*")) return "[^]*";
      return found === "?" ? "[^]" : quoted(found);
    },
  );
  const expression = new RegExp(`^${pattern}$`, "iu");
  return (name) => expression.test(name);
}

function quoted(character: string): string {
  return character.replace(/[.+^${}()|[\]\\*?/-]/u, "\\$&").replace("\\-", "-");
}
