import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { warningsAbout } from "./display.ts";
import type { LayerRules, Layers } from "./model.ts";
import { type ConnectorFiles, secretWords } from "./protected-files.ts";
import { expandHome, type Rule } from "./rules.ts";
import { foldCase, toSlashes } from "./wildcard.ts";

/** A directory that is searched: its canonical path, and the form that rules match and approvers see. */
export interface ReadPlace {
  absolute: string;
  pattern: string;
}

/**
 * Returns the substrings that identify possibly restricted files below a directory: a name that contains none of them, in
 * lower case, is readable. Applies to plain names only (printable ASCII, no long run of spaces). No substring has a slash.
 * Undefined if any file may be restricted. Searches use it, since they find more files than they can judge one by one.
 */
export function readDoubts(
  { absolute, pattern }: ReadPlace,
  { wide, narrow }: Layers,
  {
    about,
    denied,
    home,
    connectorFiles,
  }: {
    about(list: LayerRules): readonly Rule[];
    denied: readonly string[];
    home: string;
    connectorFiles: Pick<ConnectorFiles, "isBelow">;
  },
): string[] | undefined {
  const place = foldCase(toSlashes(absolute));
  const shown = foldCase(toSlashes(pattern));
  if (kernel.test(`${place}/`) || warningsAbout(absolute).length > 0) return undefined;
  if (denied.some((path) => isWithin(place, path) || isWithin(path, place))) return undefined;
  if (connectorFiles.isBelow(absolute)) return undefined;
  if (narrow.some(({ problem }) => problem !== undefined)) return undefined;
  const rules = [exceptions(wide.flatMap(about)), ...narrow.map((list) => doubtsOf(list, about(list)))];
  const words = rules.flatMap((list) => list?.map((rule) => wordOfRule(rule, home, place, shown)) ?? [undefined]);
  return shortest([...words, ...secretWords.map((word) => wordOf(word, place))]);
}

/**
 * Returns the substrings that identify files below a directory whose edit rules may deny, like `readDoubts`. Does not cover
 * protected files and those of the engine. Undefined if any file may be denied.
 */
export function editDoubts(
  { absolute, pattern }: ReadPlace,
  { wide, narrow }: Layers,
  { about, home }: { about(list: LayerRules): readonly Rule[]; home: string },
): string[] | undefined {
  const place = foldCase(toSlashes(absolute));
  const shown = foldCase(toSlashes(pattern));
  const rules = [wide.flatMap(about), ...narrow.map(about)].flatMap(denials);
  return shortest(rules.map((rule) => wordOfRule(rule, home, place, shown)));
}

/** The rules that deny, of those after the last one that lifts all denials. */
function denials(rules: readonly Rule[]): Rule[] {
  const lifted = rules.findLastIndex(({ pattern, action }) => pattern === "*" && action !== PermissionAction.DENY);
  return rules.slice(lifted + 1).filter(({ action }) => action === PermissionAction.DENY);
}

/** Names for which the substrings hold: printable ASCII without many spaces in a row. */
export const plainName = /^(?!.* {8})[ -~]*$/;

/** Directories below which paths are the kernel's, or may be. */
const kernel = /^\/(\/|proc\/|sys\/|dev\/)/;

const isWithin = (path: string, directory: string) => path === directory || path.startsWith(`${directory}/`);

/** The rules that may override the last one that allows everything; undefined without such a rule. */
function exceptions(rules: readonly Rule[]): Rule[] | undefined {
  const all = rules.findLastIndex(allowsAll);
  return all === -1 ? undefined : rules.slice(all + 1).filter(({ action }) => action !== PermissionAction.ALLOW);
}

/** The same for a list that can only narrow, and has no opinion where no rule matches. */
function doubtsOf({ layer }: LayerRules, rules: readonly Rule[]): Rule[] {
  const isInherited = layer === PermissionLayer.INHERITED;
  return rules
    .slice(rules.findLastIndex(allowsAll) + 1)
    .filter(({ action }) => (isInherited ? action === PermissionAction.DENY : action !== PermissionAction.ALLOW));
}

const allowsAll = ({ pattern, action }: Rule) => pattern === "*" && action === PermissionAction.ALLOW;

/** The word of a rule's pattern, which is about canonical paths or about the form that approvers see. */
function wordOfRule({ pattern }: Rule, home: string, place: string, shown: string): string | undefined {
  const path = foldCase(expandHome(toSlashes(pattern), home));
  const relative = shown === "." ? "" : shown;
  return wordOf(path.replace(/ \*$/, ""), path.startsWith("/") ? place : relative);
}

/** The longest part of a pattern that a segment of a matching path must contain, and that the directory does not. */
function wordOf(pattern: string, directory: string): string | undefined {
  const words = pattern.split(/[*?/]/).filter((word) => word !== "" && !directory.includes(word));
  return words.toSorted((one, other) => other.length - one.length)[0];
}

/** Removes words that contain another one; undefined if a word is not known. */
function shortest(words: readonly (string | undefined)[]): string[] | undefined {
  const distinct = [...new Set(words)].filter((word) => word !== undefined);
  if (words.includes(undefined)) return undefined;
  return distinct.filter((word) => !distinct.some((other) => other !== word && word.includes(other)));
}
