import { dirname, join, resolve } from "node:path";
import type { Command } from "./command.ts";
import type { Use } from "./effects.ts";
import { pathsOf } from "./glob.ts";
import { addBelow, addCopies, canBePath, type Files, put, type Touched } from "./touched.ts";
import { addInRepository, addObjects, type GitPlace, topOfObjects } from "./touched-repository.ts";

/** Adds a path that a command names. */
export async function addUse(
  touched: Touched,
  use: Use,
  { opaque }: Command,
  placed: GitPlace,
  files: Files,
  home: string,
): Promise<void> {
  const { cwd } = placed;
  if (harmlessFiles.has(use.path) || !canBePath(use.path) || use.within?.as === "source") return;
  if (use.within) return await addInRepository(touched, use, use.within, placed, files);
  const path = opaque === undefined ? use.path : use.path.replace(/^(~|\$HOME|\$\{HOME\})(?=\/|$)/, home);
  const paths = use.glob ? await pathsOf(path, cwd, files.list) : [path];
  // Too many matches to judge: ask for their directory, inside the workspace or not.
  if (paths === undefined) touched.outside.add(resolve(cwd, path.replace(/[^/]*[*?[].*$/, "")));
  for (const one of paths ?? []) {
    const place = await files.resolve(one, cwd).catch(() => undefined);
    const store = place && use.as !== "write" ? topOfObjects(place.absolute) : undefined;
    if (store !== undefined) await addObjects(touched, "history", [], { ...placed, top: store }, files);
    if (place) put(touched, place, use);
    else touched.outside.add(join(cwd, dirname(one)));
    if (!place || place.external) continue;
    if (use.below && place.isDirectory) await addBelow(touched, place, use, files);
    // A copy of a directory to a name that does not exist yet gets that name.
    for (const { from, to } of use.trees ?? [])
      await addCopies(touched, place, { from, to: place.isDirectory ? to : "" }, cwd, files);
  }
}

const harmlessFiles = new Set(["/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/zero", ""]);
