import { isDeepStrictEqual } from "node:util";
import type { JsonValue } from "@bufbuild/protobuf";
import { applyEdits, findNodeAtLocation, getNodeValue, modify, type ParseError, parseTree } from "jsonc-parser";
import { exitCodes } from "../exit-codes.ts";
import { CommandError } from "../failure/command-error.ts";

/** A value that a connector adds to a JSON file of an agent, whose other content stays as it is. */
export interface JsonEntry {
  /** The keys that lead to the value, or for an item to its array. */
  readonly path: readonly string[];
  readonly value: JsonValue;
  /** True if the value is an item of the array at the path. */
  readonly isItem?: boolean | undefined;
}

/** Adds the entries that are missing to a text with comments, which stay. */
export function addEntries(file: string, text: string | undefined, entries: readonly JsonEntry[]): string {
  return entries.reduce((current, entry) => {
    if (hasEntry(file, current, entry)) return current;
    const { path, value, isItem } = entry;
    const isIn = isItem && findNodeAtLocation(rootOf(file, current), [...path])?.type === "array";
    const edits = isIn
      ? modify(current, [...path, -1], value, { ...format, isArrayInsertion: true })
      : modify(current, [...path], isItem ? [value] : value, format);
    return applyEdits(current, edits);
  }, text ?? "{}\n");
}

/** Removes the entries that are present, and objects and arrays that are empty without them. */
export function removeEntries(file: string, text: string, entries: readonly JsonEntry[]): string {
  return entries.reduce((current, entry) => {
    if (!hasEntry(file, current, entry)) return current;
    const index = entry.isItem ? itemIndex(rootOf(file, current), entry) : undefined;
    const removed = removeAt(current, index === undefined ? [...entry.path] : [...entry.path, index]);
    return removeEmpty(file, removed, entry.path.slice(0, index === undefined ? -1 : undefined));
  }, text);
}

/** Checks if a text has exactly the value of an entry at its place. */
export function hasEntry(file: string, text: string, entry: JsonEntry): boolean {
  const root = rootOf(file, text);
  if (entry.isItem) return itemIndex(root, entry) !== undefined;
  const node = findNodeAtLocation(root, [...entry.path]);
  return node !== undefined && isEqual(node, entry.value);
}

/** Returns the value at a place of a text with comments; undefined if there is none. */
export function findEntry(file: string, text: string, path: readonly string[]): unknown {
  const node = findNodeAtLocation(rootOf(file, text), [...path]);
  return node === undefined ? undefined : getNodeValue(node);
}

/** Compares by content; the parser's objects have no prototype. */
function isEqual(node: Root, value: JsonValue): boolean {
  return isDeepStrictEqual(structuredClone(getNodeValue(node)), structuredClone(value));
}

type Root = NonNullable<ReturnType<typeof parseTree>>;

function itemIndex(root: Root, { path, value }: JsonEntry): number | undefined {
  const items = findNodeAtLocation(root, [...path])?.children ?? [];
  const index = items.findIndex((item) => isEqual(item, value));
  return index === -1 ? undefined : index;
}

function removeAt(text: string, path: (string | number)[]): string {
  return applyEdits(text, modify(text, path, undefined, format));
}

function removeEmpty(file: string, text: string, path: readonly string[]): string {
  const node = path.length === 0 ? undefined : findNodeAtLocation(rootOf(file, text), [...path]);
  if (node === undefined || (node.children ?? []).length > 0 || hasComment(text, node)) return text;
  return removeEmpty(file, removeAt(text, [...path]), path.slice(0, -1));
}

function hasComment(text: string, { offset, length }: { offset: number; length: number }): boolean {
  return /\/[/*]/.test(text.slice(offset, offset + length));
}

function rootOf(file: string, text: string): Root {
  const errors: ParseError[] = [];
  const root = parseTree(text, errors, { allowTrailingComma: true });
  if (root?.type === "object" && errors.length === 0) return root;
  const [error] = errors;
  const place = error === undefined ? "" : `, line ${text.slice(0, error.offset).split("\n").length}`;
  throw new CommandError(
    `${file}${place}: this is not a JSON object, so nothing was written`,
    "correct the file, then run the command again",
    exitCodes.failed,
  );
}

const format = { formattingOptions: { insertSpaces: true, tabSize: 2, eol: "\n" } };
