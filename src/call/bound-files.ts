import { createHash } from "node:crypto";
import { constants } from "node:fs";
import { access, type FileHandle, lstat, open, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import type { ViewFile } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { readRegularFile } from "../core/read-files.ts";
import { visible, visibleLine } from "../core/visible.ts";
import { mergeRisks, risksOfCommands } from "../policy/risk.ts";
import type { CodeFile, PlacedCode } from "../policy/shell/code.ts";
import { isSimpleLine, type Readings, readCommands } from "../policy/shell/command.ts";
import type { RiskFound } from "../policy/shell/effects.ts";

/** Finds the file that a shell runs for a name: the first executable of that name in the directories of a PATH. */
export async function findProgram(name: string, searchPath: string): Promise<string | undefined> {
  if (name.startsWith("/")) return name;
  if (name === "" || name.includes("/")) return undefined;
  for (const directory of searchPath.split(":").filter((directory) => directory !== "")) {
    const path = join(directory, name);
    const isFile = await stat(path).then(
      (found) => found.isFile(),
      () => false,
    );
    if (isFile && (await canRun(path))) return path;
  }
  return undefined;
}

async function canRun(path: string): Promise<boolean> {
  return await access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}

/** The content of a file, as far as approvals and approvers need it. */
export interface FileContent {
  /** SHA-256 of a regular file's content, or a word for why there is none: a file that appears or disappears is a change too. */
  sha256: string;
  bytes: number;
  lines: number;
  /** True if a shell refuses to run it as a script. An interpreter that gets its name may still run it. */
  isBinary: boolean;
}

/** Contents of files. */
export interface FileHashes {
  of(path: string): Promise<FileContent>;
}

/** Size from which a file is not read again while its metadata is unchanged. */
const minCachedBytes = 65_536;
const maxCached = 256;
/** Size above which a file is identified by its metadata: to read it would take minutes, in which nobody is asked. */
const maxHashedBytes = 1024 * 1024 * 1024;

/** Creates an empty cache of file contents. */
export function createFileHashes(): FileHashes {
  const cache = new Map<string, FileContent>();
  return {
    async of(path) {
      try {
        // Non-blocking: opening a FIFO would otherwise wait for a writer.
        await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
        const found = await file.stat({ bigint: true });
        if (!found.isFile()) return withoutContent("not a file");
        if (found.size < minCachedBytes) return await contentOf(file);
        const { dev, ino, size, mtimeNs, ctimeNs } = found;
        const name = [dev, ino, size, mtimeNs, ctimeNs].join(" ");
        if (size > maxHashedBytes)
          return { ...withoutContent(`too large to read, identified by ${name}`), bytes: Number(size) };
        const content = cache.get(name) ?? (await contentOf(file));
        if (cache.size >= maxCached) cache.clear();
        cache.set(name, content);
        return content;
      } catch (cause) {
        return withoutContent(cause instanceof Error && "code" in cause ? String(cause.code) : "unreadable");
      }
    },
  };
}

const withoutContent = (why: string): FileContent => ({ sha256: why, bytes: 0, lines: 0, isBinary: false });

async function contentOf(file: FileHandle): Promise<FileContent> {
  const hash = createHash("sha256");
  let [bytes, lines, isBinary, isEnded] = [0, 0, false, true];
  // A file may grow without end while it is read.
  const stream = file.createReadStream({ autoClose: false, end: maxHashedBytes });
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    hash.update(chunk);
    // As bash does: a null character in the first line, of which it reads 80 bytes.
    if (bytes === 0) isBinary = /^[^\n]*\0/.test(chunk.subarray(0, 80).toString("latin1"));
    bytes += chunk.length;
    for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, at + 1)) lines += 1;
    isEnded = chunk.at(-1) === 10;
  }
  return { sha256: hash.digest("hex"), bytes, lines: lines + (isEnded ? 0 : 1), isBinary };
}

/** Reads a file of at most so many bytes: empty if there is none, undefined if it is larger, or is not a readable file. */
export async function readSmall(path: string, maxBytes: number): Promise<string | undefined> {
  return await readRegularFile(path, maxBytes).then(String, (cause: unknown) =>
    cause instanceof Error && "code" in cause && /^(ENOENT|ENOTDIR)$/.test(String(cause.code)) ? "" : undefined,
  );
}

/** The files of a workspace, by path relative to it: identity, size and time of change. */
export interface FileTree {
  digest: string;
  changedMs: ReadonlyMap<string, number>;
}

/** Files of a workspace up to which an approval is bound to them. */
const maxTreeFiles = 20_000;

/** Reads the names, identities, sizes and times of change of files; undefined for too many. */
export async function readTree(directory: string, names: readonly string[]): Promise<FileTree | undefined> {
  if (names.length > maxTreeFiles) return undefined;
  const hash = createHash("sha256");
  const changedMs = new Map<string, number>();
  const sorted = names.toSorted();
  for (let at = 0; at < sorted.length; at += 256) {
    const some = sorted.slice(at, at + 256);
    const found = await Promise.all(some.map((name) => lstat(join(directory, name)).catch(() => undefined)));
    for (const [i, stats] of found.entries()) {
      hash.update(`${some[i]}\0${stats?.ino}\0${stats?.size}\0${stats?.mtimeMs}\0${stats?.ctimeMs}\0`);
      if (stats) changedMs.set(some[i] ?? "", stats.ctimeMs);
    }
  }
  return { digest: hash.digest("hex"), changedMs };
}

/** Bytes of a bound file that an approver reads. */
const maxReadBytes = 512 * 1024;

/**
 * Reads a file whose content is still the one that an approval would be bound to, in visible form; undefined if it is another one. An
 * interpreter also runs what is no valid text, so only a program without lines has none. Passwords in settings of git are masked.
 */
export async function readBoundFile(
  path: string,
  { sha256, lines }: Pick<ViewFile, "sha256" | "lines">,
): Promise<{ text: string; truncated: boolean; binary: boolean } | undefined> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK).catch(() => undefined);
  const stats = await file?.stat();
  if (!file || !stats?.isFile() || stats.size > maxHashedBytes) return undefined;
  const hash = createHash("sha256");
  const beginning: Buffer[] = [];
  let size = 0;
  for await (const chunk of file.createReadStream({ autoClose: false, end: maxHashedBytes })) {
    hash.update(chunk);
    if (size < maxReadBytes) beginning.push(chunk);
    size += chunk.length;
  }
  if (hash.digest("hex") !== sha256) return undefined;
  const truncated = size > maxReadBytes;
  if (lines === 0) return { text: "", truncated, binary: true };
  // Of a character that is cut at the end the decoder emits nothing.
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const text = decoder.decode(Buffer.concat(beginning).subarray(0, maxReadBytes), { stream: truncated });
  return { text: visible(mayHoldPasswords(path) ? withoutPasswords(text) : text), truncated, binary: false };
}

const mayHoldPasswords = (path: string) => /(^|\/)(\.?gitconfig|\.?git\/config(\.worktree)?)$/.test(path);

/** Masks what settings of git hold to sign in: a mask covers no character with which a shell could run something. */
function withoutPasswords(settings: string): string {
  return settings
    .replace(/(:\/\/[^\s/@:"']*:)[^\s/"'$`()\\;|&<>]+(?=@)/g, "$1***")
    .replace(/(:\/\/)[\w-]{20,}(?=@)/g, "$1***")
    .replace(/^(\s*extraheader\s*=\s*"?[\w-]+:\s*(?:basic|bearer)\s+)[\w+/=.~-]+/gim, "$1***");
}

/** A file that runs, to whose content an approval is bound. */
export interface CodeText extends PlacedCode, Pick<ViewFile, "sha256" | "lines"> {}

/** Characters of code that are searched for risks, and those that are read at a time. */
const maxRiskLength = 32_768;
const maxPieceLength = 4_096;

/**
 * Finds risks in shell scripts, in the scripts of a package.json and in recipes of a Makefile, each with the name of its file. It reads
 * the content to which the approval is bound, and no more than the first 32 KiB: `isWhole` is false if there is more.
 */
export async function risksOfCode(
  files: readonly CodeText[],
  read: (texts: readonly string[]) => Promise<Readings>,
): Promise<{ risks: RiskFound[]; isWhole: boolean }> {
  const found: RiskFound[] = [];
  let left = maxRiskLength;
  let isWhole = true;
  for (const file of files) {
    if (!file.scripts && !mayBeShell(file)) continue;
    const text = left > 0 ? (await readBoundFile(file.absolute, file))?.text : undefined;
    if (text === undefined) isWhole = false;
    if (text === undefined) continue;
    if (!file.scripts && !isShell(file, text)) continue;
    const pieces = file.scripts ? linesOf(file, text) : piecesOf(text.slice(0, left));
    if (!file.scripts && text.length > left) isWhole = false;
    for (const piece of pieces) {
      left -= piece.length;
      if (left < 0) {
        isWhole = false;
        break;
      }
      const { commands, risks } = (await read([piece])).get(piece) ?? { commands: readCommands(piece) };
      for (const { kind, parts } of risks ?? risksOfCommands(commands))
        found.push({
          kind,
          parts: parts.map((part) => `${visibleLine(file.external ? file.absolute : file.pattern)}: ${part}`),
        });
    }
  }
  return { risks: mergeRisks(found), isWhole };
}

/** Splits a text between lines. */
function piecesOf(text: string): string[] {
  const pieces: string[] = [];
  let piece = "";
  for (const line of text.split(/(?<=\n)/)) {
    if (piece !== "" && piece.length + line.length > maxPieceLength) {
      pieces.push(piece);
      piece = "";
    }
    piece += line;
  }
  return [...pieces, piece];
}

/** Names of files that another program than a shell reads, unless the line names a shell. */
const foreignCode =
  /\.([cm]?[jt]sx?|py|rb|p[lm]|php|lua|jl|r|ps1|awk|sed|jq|json|ya?ml|toml|ini|cfg|gradle|kts|mk|patch|diff)$/i;

const mayBeShell = ({ use, pattern, ...file }: CodeText) =>
  file.isShell || /\.\w*sh$/.test(pattern) || (use !== "build" && use !== "patch" && !foreignCode.test(pattern));

function isShell({ use, pattern, ...file }: CodeText, text: string): boolean {
  if (file.isShell) return true;
  const interpreter = /^#!.*/.exec(text)?.[0];
  if (interpreter !== undefined) return /\b[a-z]*sh\b/.test(interpreter);
  return use !== "startup" || /\.\w*sh$/.test(pattern);
}

/** Adds the files that scripts of a package.json, or recipes, run, as far as their lines are short; `unread` names what is too large. */
export async function withScripts(
  files: readonly PlacedCode[],
): Promise<{ files: PlacedCode[]; unread: readonly string[] }> {
  const unread: string[] = [];
  const added = files.map(async (file): Promise<PlacedCode[]> => {
    const { absolute, pattern, external, scripts } = file;
    if (!scripts) return [file];
    const text = await readSmall(absolute, maxScriptsBytes);
    if (text === undefined) unread.push(visibleLine(pattern));
    const lines = linesOf(file, text ?? "");
    return [
      file,
      ...lines
        .flatMap(codeOf)
        .filter(({ glob, path }) => !glob && !path.startsWith("/"))
        .map(({ path, use, isShell = false }) => ({
          ...{ absolute: join(dirname(absolute), path), pattern: join(dirname(pattern), path), external, use },
          ...(isShell && { isShell }),
        })),
    ];
  });
  return { files: (await Promise.all(added)).flat(), unread };
}

/** Bytes of a Makefile or package.json up to which it is read. */
const maxScriptsBytes = 512 * 1024;

const codeOf = (line: string): CodeFile[] =>
  isSimpleLine(line) ? readCommands(line).flatMap(({ code }) => [...code.files]) : [];

/** Returns the command lines of a package.json, Makefile or justfile that run. */
function linesOf({ pattern, scripts = [] }: PlacedCode, text: string): string[] {
  return basename(pattern) === "package.json" ? scriptsIn(text, scripts) : recipesIn(text, scripts);
}

/** Returns the scripts of these names in a package.json, with the scripts that they run. */
function scriptsIn(text: string, names: readonly string[]): string[] {
  const scripts = parseScripts(text);
  const wanted = new Set(names);
  // The set grows in the loop.
  for (const name of wanted) {
    const line = scripts.get(name);
    if (line === undefined) wanted.delete(name);
    else
      for (const { path, scripts = [] } of codeOf(line))
        if (path === "package.json") scripts.forEach(wanted.add, wanted);
  }
  return [...wanted].flatMap((name) => scripts.get(name) ?? []);
}

function parseScripts(text: string): Map<string, string> {
  try {
    const { scripts = {} } = JSON.parse(text);
    return new Map(Object.entries(scripts).filter((entry): entry is [string, string] => typeof entry[1] === "string"));
  } catch {
    return new Map();
  }
}

/**
 * Returns the recipes of these targets in a Makefile or justfile, and of the targets that they need; without one, of the first. Variables
 * that are set to a text are replaced by it, also in the text of another one.
 */
function recipesIn(text: string, targets: readonly string[]): string[] {
  const variables = new Map<string, string>();
  let left = maxRiskLength;
  const expanded = (line: string) =>
    line.replaceAll(/\$(?:\((\w+)\)|\{(\w+)\})/g, (_, one, name = one) => {
      const value = variables.get(name);
      left -= value?.length ?? 0;
      return value === undefined || left < 0 ? `\${${name}}` : value;
    });
  const rules = new Map<string, { needs: string[]; recipe: string[] }>();
  let now: { needs: string[]; recipe: string[] }[] = [];
  for (const line of text.replaceAll("\\\n", " ").split("\n")) {
    const [, command] = /^[ \t]+[@+-]*(.+)/.exec(line) ?? [];
    for (const { recipe } of command === undefined ? [] : now) recipe.push(command ?? "");
    const [, name = "", value = ""] = /^(\w+)\s*[:?+]*=\s*(.*)/.exec(line) ?? [];
    if (name !== "") variables.set(name, expanded(value));
    const [, names = "", needs = "", first] = /^([^\s#:=][^:=#]*)::?(?!=)([^#;]*)(?:;(.*))?/.exec(line) ?? [];
    if (names === "") continue;
    now = wordsOf(names).map((name) => {
      const rule = rules.get(name) ?? { needs: [], recipe: [] };
      rule.needs.push(...wordsOf(needs));
      if (first !== undefined) rule.recipe.push(first);
      rules.set(name, rule);
      return rule;
    });
  }
  const known = targets.filter((name) => rules.has(name));
  const wanted = new Set(
    known.length > 0 ? known : [...rules.keys()].filter((name) => !name.startsWith(".")).slice(0, 1),
  );
  for (const name of wanted) for (const need of rules.get(name)?.needs ?? []) wanted.add(need);
  return [...wanted].flatMap((name) => {
    const recipe = rules.get(name)?.recipe.join("\n") ?? "";
    return recipe === "" ? [] : [expanded(recipe).replaceAll("$$", "$")];
  });
}

const wordsOf = (text: string) => text.split(/\s+/).filter((word) => word !== "");
