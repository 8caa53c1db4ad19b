import { dirname, join } from "node:path";
import type { Ask } from "../core/ask.ts";
import type { ResolvedPath } from "./workspace.ts";

/** The asks for touching one file or directory: `external_directory` in addition where it lies outside. */
export function pathAsks(permission: string, path: ResolvedPath, metadata?: Ask["metadata"]): Ask[] {
  const own = {
    permission,
    patterns: [path.pattern],
    paths: [path.absolute],
    ...doubtAbout(path),
  };
  return [...externalAsks(path), metadata === undefined ? own : { ...own, metadata }];
}

/** Why rules about names are not enough for a file, as part of an ask for it; nothing for nearly all files. */
export function doubtAbout({
  absolute,
  otherNames,
  isSpecial,
}: Pick<ResolvedPath, "absolute" | "otherNames" | "isSpecial">): Pick<Ask, "alwaysAsk"> {
  if (isSpecial) return { alwaysAsk: "is a pipe, a socket or a device" };
  if (!otherNames || sharedByInstallers.test(absolute)) return {};
  return { alwaysAsk: "has other names (hard links), under which a rule might say otherwise" };
}

/** Package managers link what they install to their store, and nobody keeps secrets there. */
const sharedByInstallers = /\/(node_modules|site-packages)\//;

/** The ask for looking into a directory outside the workspace; none inside. */
export function externalAsks(path: ResolvedPath): Ask[] {
  if (!path.external) return [];
  const directory = path.isDirectory ? path.absolute : dirname(path.absolute);
  return [
    {
      permission: "external_directory",
      patterns: [join(directory, "*")],
      paths: [directory],
      metadata: { filepath: path.absolute, parentDir: directory },
    },
  ];
}
