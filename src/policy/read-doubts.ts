import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { warningsAbout } from "./display.ts";
import type { LayerRules, Layers } from "./model.ts";
import { secretWords } from "./protected-files.ts";
import { expandHome, type Rule } from "./rules.ts";
import { foldCase, toSlashes } from "./wildcard.ts";

/** A folder that is searched: its canonical path, and how rules and people see it. */
export interface ReadPlace {
  absolute: string;
  pattern: string;
}

/**
 * The words of which the name of a file below a folder must hold one, in lower case, for `read` of it not to be allowed;
 * only for plain names (printable ASCII, no long run of spaces). None has a slash. Undefined: any file may be one.
 * It is for searches, which find more files than they can have judged one by one.
 */
export function readDoubts(
  { absolute, pattern }: ReadPlace,
  { wide, narrow }: Layers,
  { about, kept, home }: { about(list: LayerRules): readonly Rule[]; kept: readonly string[]; home: string },
): string[] | undefined {
  const place = foldCase(toSlashes(absolute));
  const shown = pattern === "." ? "" : foldCase(toSlashes(pattern));
  if (kernel.test(`${place}/`) || warningsAbout(absolute).length > 0) return undefined;
  if (kept.some((path) => isWithin(place, path) || isWithin(path, place))) return undefined;
  if (narrow.some(({ problem }) => problem !== undefined)) return undefined;
  const rules = [exceptions(wide.flatMap(about)), ...narrow.map((list) => doubtsOf(list, about(list)))];
  const words = rules.map((list) =>
    list?.map((rule) => {
      const path = foldCase(expandHome(toSlashes(rule.pattern), home));
      return wordOf(path.replace(/ \*$/, ""), path.startsWith("/") ? place : shown);
    }),
  );
  const all = [...words.flatMap((list) => list ?? [undefined]), ...secretWords.map((word) => wordOf(word, place))];
  const known = all.filter((word) => word !== undefined);
  return known.length < all.length ? undefined : shortest(known);
}

/** Where every path leads to the kernel, or may. */
const kernel = /^\/(\/|proc\/|sys\/|dev\/)/;

const isWithin = (path: string, folder: string) => path === folder || path.startsWith(`${folder}/`);

/** The rules that may win over the last one that allows everything; undefined if there is none such. */
function exceptions(rules: readonly Rule[]): Rule[] | undefined {
  const all = rules.findLastIndex(allowsAll);
  return all === -1 ? undefined : rules.slice(all + 1).filter(({ action }) => action !== PermissionAction.ALLOW);
}

/** The same of a list that can only narrow, and that is of no opinion where no rule matches. */
function doubtsOf({ layer }: LayerRules, rules: readonly Rule[]): Rule[] {
  const isInherited = layer === PermissionLayer.INHERITED;
  return rules
    .slice(rules.findLastIndex(allowsAll) + 1)
    .filter(({ action }) => (isInherited ? action === PermissionAction.DENY : action !== PermissionAction.ALLOW));
}

const allowsAll = ({ pattern, action }: Rule) => pattern === "*" && action === PermissionAction.ALLOW;

/** The longest part of a pattern that must stand in one part of a path's name, and not in the folder before it. */
function wordOf(pattern: string, folder: string): string | undefined {
  const words = pattern.split(/[*?/]/).filter((word) => word !== "" && !folder.includes(word));
  return words.toSorted((one, other) => other.length - one.length)[0];
}

/** Without those that hold another one. */
function shortest(words: readonly string[]): string[] {
  const distinct = [...new Set(words)];
  return distinct.filter((word) => !distinct.some((other) => other !== word && word.includes(other)));
}
