import type { Ask } from "../../core/ask.ts";
import { openDirectory } from "../../tool/open-file.ts";
import type { Plan } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";
import { createReadFilter, named } from "../fs/found-files.ts";
import { readGlob } from "../fs/glob-pattern.ts";
import { everySearch, ripgrep, searchTime } from "../fs/ripgrep.ts";
import type { Place } from "./mapping.ts";

/** Plans to find files by name, also in directories that the pattern itself leads to. */
export async function planGlob({ pattern, path = "." }: { pattern: string; path?: string | undefined }, at: Place) {
  const directory = await at.resolve(path);
  const bases = readGlob(pattern).map(({ base }) => (/^[/~]/.test(base) ? base : `${directory.absolute}/${base}`));
  const others = await Promise.all(bases.map(at.resolve));
  const outside = others.filter(({ external }) => external).flatMap((other) => at.asks("list", other));
  return {
    title: pattern,
    asks: [
      ...at.asksIn(directory, { permission: "glob", patterns: [pattern], paths: [directory.absolute] }),
      ...outside,
    ],
    inspect: async () => ({ preview: () => ({ paths: [directory.pattern] }) }),
  } satisfies Plan;
}

/** Plans to list a directory. */
export async function planList(path: string, at: Place): Promise<Plan> {
  const directory = await at.resolve(path);
  return {
    title: directory.pattern,
    asks: at.asks("list", directory),
    inspect: async () => ({ preview: () => ({ paths: [directory.pattern] }) }),
  };
}

/** Files that a search asks about one by one; more of them ask as a whole. */
const maxAsked = 20;

/**
 * Plans to search the content of files. Our `grep` leaves restricted files out; an agent's own search does not, so it asks to
 * read those that lie below the directory.
 */
export async function planGrep(
  { pattern, path = ".", include }: { pattern: string; path?: string | undefined; include?: string | undefined },
  at: Place,
): Promise<Plan> {
  const place = await at.resolve(path);
  const ask = {
    permission: "grep",
    patterns: [pattern],
    paths: [place.absolute],
    metadata: { pattern, path: place.pattern },
  };
  const reads = place.isDirectory ? await restrictedBelow(place, include !== undefined, at) : at.asks("read", place);
  return {
    title: pattern,
    asks: [...at.asksIn(place, ask), ...reads],
    inspect: async () => ({ preview: () => ({ paths: [place.pattern] }) }),
  };
}

/** Asks to read the restricted files below a directory. A filter of names also reaches files that git ignores. */
async function restrictedBelow(directory: PathHandle, withIgnored: boolean, at: Place): Promise<Ask[]> {
  if (!at.isDiskShared) return [];
  using opened = openDirectory(directory.absolute);
  const searched = { ...directory, opened };
  const { mayBeRestricted, mayRead } = createReadFilter(searched, at.judge);
  const names: string[] = [];
  const late = searchTime();
  const listing = [...everySearch, ...(withIgnored ? ["--no-ignore"] : []), "--files", "--null"];
  const search = {
    args: listing,
    cwd: opened.path,
    delimiter: "\0",
    prefilter: mayBeRestricted,
    late,
    signal: late,
  } as const;
  const stopped = await ripgrep(search, (record) => {
    const name = record.replace(/^\.\//, "");
    if (names.length <= maxAsked && !mayRead(name)) names.push(name);
  });
  if (names.length === 0 && stopped === undefined) return [];
  const files = named(names, searched);
  const read = {
    permission: "read",
    patterns: files.map(({ shown }) => shown),
    paths: files.map(({ absolute }) => absolute),
  };
  if (stopped === undefined && names.length <= maxAsked) return [read];
  return [{ ...read, alwaysAsk: "is one of many restricted files that the search may read" }];
}
