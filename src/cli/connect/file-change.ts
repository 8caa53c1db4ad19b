import { createHash, randomBytes } from "node:crypto";
import { existsSync, mkdirSync, realpathSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import type { JsonValue } from "@bufbuild/protobuf";
import { createTwoFilesPatch } from "diff";
import { applyEdits, findNodeAtLocation, getNodeValue, modify, type ParseError, parseTree } from "jsonc-parser";
import { readIfExists } from "../../core/read-files.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";
import { type AgentUser, asAgentUser } from "./agent-user.ts";

/** A planned change of a file. */
export interface PlannedChange {
  /** Absolute, with links resolved. */
  readonly path: string;
  /** The text when the change was planned; undefined if the file did not exist. */
  readonly before: string | undefined;
  /** The text to write; undefined removes the file. */
  readonly after: string | undefined;
  /** True for a text that is not shown and that only its user may read. */
  readonly isSecret?: boolean;
  /** True for a file of root that every user may read; the others are files of the agent's user. */
  readonly isSystem?: boolean;
}

/** Returns the path with its links resolved; parts that do not exist yet stay as written. */
export function resolvedPath(path: string): string {
  if (existsSync(path)) return realpathSync(path);
  const parent = dirname(path);
  return parent === path ? path : join(resolvedPath(parent), basename(path));
}

/** Describes a change as a unified diff that is harmless to the terminal; of a secret only its path. */
export function diffOf({ path, before, after, isSecret }: PlannedChange): string {
  if (before === after) return "";
  if (isSecret)
    return `${after === undefined ? "remove" : "write"} ${terminalSafe(path)} (a token, only for its user)\n`;
  const names = [before === undefined ? "/dev/null" : path, after === undefined ? "/dev/null" : path] as const;
  return terminalSafe(
    createTwoFilesPatch(...names, before ?? "", after ?? "", undefined, undefined, { headerOptions }),
  );
}

const headerOptions = { includeIndex: false, includeUnderline: false, includeFileHeaders: true };

/** Makes the changes with the rights of their owners, each by a rename. Refuses all of them if a file changed since it was planned. */
export function applyChanges(changes: readonly PlannedChange[], user: AgentUser): void {
  const changed = changes.find((change) => presentText(change, user) !== change.before);
  if (changed !== undefined)
    throw new CommandError(
      `${changed.path} has changed since the change was planned, so nothing was written`,
      "run the command again to see the new difference",
      exitCodes.failed,
    );
  for (const change of changes) if (change.before !== change.after) asOwner(change, user, () => applyChange(change));
}

/** Restores what `applyChanges` has written, the last one first. A file that has changed since stays as it is. */
export function revertChanges(changes: readonly PlannedChange[], user: AgentUser): void {
  const written = changes.filter((change) => presentText(change, user) === change.after);
  const reversed = written.map((change) => ({ ...change, before: change.after, after: change.before }));
  applyChanges(reversed.reverse(), user);
}

const presentText = (change: PlannedChange, user: AgentUser) => asOwner(change, user, () => readIfExists(change.path));

const asOwner = <T>({ isSystem }: PlannedChange, user: AgentUser, work: () => T) =>
  isSystem ? work() : asAgentUser(user, work);

function applyChange({ path, after, isSecret, isSystem }: PlannedChange): void {
  if (after === undefined) {
    rmSync(path, { force: true });
    return;
  }
  // The agent has to read a file of the system, or it runs without our hooks.
  const mask = isSystem ? process.umask(0o022) : undefined;
  try {
    mkdirSync(dirname(path), { recursive: true, mode: isSystem ? 0o755 : 0o700 });
    const mode = (statSync(path, { throwIfNoEntry: false })?.mode ?? 0o600) & 0o777;
    const next = `${path}.${randomBytes(4).toString("hex")}.new`;
    writeFileSync(next, after, { mode: isSystem ? 0o644 : isSecret ? 0o600 : mode, flag: "wx", flush: true });
    renameSync(next, path);
  } finally {
    if (mask !== undefined) process.umask(mask);
  }
}

/** Returns the SHA-256 of a text, hex. */
export function digestOfText(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}

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
