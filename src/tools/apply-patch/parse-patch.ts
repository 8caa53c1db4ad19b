/** The section of a patch for one file. */
export type FilePatch =
  | { kind: "add"; path: string; content: string }
  | { kind: "delete"; path: string }
  | { kind: "update"; path: string; moveTo?: string; chunks: Chunk[] };

/** A run of kept, removed or added lines, with what locates it. */
export interface Chunk {
  /** Lines (after `@@`) that precede it, in this order. */
  contexts: string[];
  /** First line in the old file, counted from 0, if its header is that of a unified diff. */
  line?: number;
  lines: { sign: " " | "-" | "+"; text: string }[];
  /** True if it must end at the end of the file. */
  isEndOfFile: boolean;
  /** True if it holds the new file's last line and that line has no line end. */
  isOpenEnd: boolean;
}

/** A patch that cannot be parsed; the message names the line and what is expected there. */
export class PatchSyntaxError extends Error {
  override name = "PatchSyntaxError";
}

/** Parses the text between `*** Begin Patch` and `*** End Patch`; ignores a heredoc or code fence around it. */
export function parsePatch(text: string): FilePatch[] {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const begin = lines.findIndex((line) => line.trim() === "*** Begin Patch");
  const end = lines.findLastIndex((line) => line.trim() === "*** End Patch");
  if (begin === -1 || end < begin) {
    throw new PatchSyntaxError(
      'Invalid patch format: it begins with a line "*** Begin Patch" and ends with "*** End Patch".',
    );
  }
  const files: FilePatch[] = [];
  for (let at = begin + 1; at < end; ) {
    const line = lines[at] ?? "";
    if (line.trim() === "") {
      at += 1;
      continue;
    }
    const [, word, path = ""] = /^\*\*\* (Add|Delete|Update) File: (.+)$/.exec(line.trimEnd()) ?? [];
    if (word === undefined) throw unexpected(line, at, "a line such as *** Update File: PATH");
    let stop = at + 1;
    while (stop < end && !/^\*\*\* (Add|Delete|Update) File: /.test(lines[stop] ?? "")) stop += 1;
    files.push(parseFile(word, path.trim(), lines.slice(at + 1, stop), at + 1));
    at = stop;
  }
  if (files.length === 0) throw new PatchSyntaxError("patch rejected: empty patch; name at least one file.");
  return files;
}

function parseFile(word: string, path: string, body: string[], first: number): FilePatch {
  if (word === "Add") return { kind: "add", path, content: addedText(withoutEmptyEnd(body), first) };
  if (word === "Delete") {
    const extra = body.findIndex((line) => line.trim() !== "");
    if (extra !== -1) throw unexpected(body[extra] ?? "", first + extra, "nothing after *** Delete File");
    return { kind: "delete", path };
  }
  const [, moveTo] = /^\*\*\* Move to: (.+)$/.exec(body[0]?.trimEnd() ?? "") ?? [];
  const chunks = parseChunks(moveTo === undefined ? body : body.slice(1), first + (moveTo === undefined ? 0 : 1));
  if (chunks.length === 0 && moveTo === undefined) {
    throw new PatchSyntaxError(`no hunks found for ${path}: write @@ and then its lines, or leave the file out.`);
  }
  return { kind: "update", path, ...(moveTo !== undefined && { moveTo: moveTo.trim() }), chunks };
}

function addedText(body: readonly string[], first: number): string {
  const wrong = body.findIndex((line) => !line.startsWith("+"));
  if (wrong !== -1) throw unexpected(body[wrong] ?? "", first + wrong, "a + before each line of an added file");
  return body.map((line) => `${line.slice(1)}\n`).join("");
}

const unifiedHeader = /^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@/;

function parseChunks(body: readonly string[], first: number): Chunk[] {
  const chunks: Chunk[] = [];
  let chunk: Chunk | undefined;
  const begin = () => {
    chunk = { contexts: [], lines: [], isEndOfFile: false, isOpenEnd: false };
    chunks.push(chunk);
    return chunk;
  };
  for (const [index, line] of body.entries()) {
    if (line.startsWith("@@")) {
      // Several headers in a row locate one place.
      readHeader(chunk === undefined || chunk.lines.length > 0 ? begin() : chunk, line);
      continue;
    }
    const isBetween = chunk === undefined || chunk.isEndOfFile;
    if (isBetween && line.trim() === "") continue;
    const current = chunk === undefined || isBetween ? begin() : chunk;
    if (line.trimEnd() === "*** End of File") current.isEndOfFile = true;
    else if (line.startsWith("\\ ")) current.isOpenEnd ||= current.lines.at(-1)?.sign !== "-";
    else current.lines.push(readLine(line, first + index));
  }
  for (const each of chunks) dropEmptyEnd(each);
  return chunks.filter(({ lines }) => lines.length > 0);
}

function readHeader(chunk: Chunk, line: string): void {
  const [unified, start = "0", count = "1"] = unifiedHeader.exec(line) ?? [];
  // Without old lines the header names the line before the new ones.
  if (unified !== undefined) chunk.line = Number(start) - (count === "0" ? 0 : 1);
  const context = unified === undefined ? line.slice(2).trim() : "";
  if (context !== "") chunk.contexts.push(context);
}

/** Parses a line of a chunk; an empty one is a kept empty line. */
function readLine(line: string, at: number): Chunk["lines"][number] {
  if (line === "") return { sign: " ", text: "" };
  const sign = line[0];
  if (sign === " " || sign === "-" || sign === "+") return { sign, text: line.slice(1) };
  throw unexpected(line, at, 'a line that begins with " ", "-", "+" or "@@"');
}

/** Drops empty lines at the end of a chunk, which separate it from the next one. */
function dropEmptyEnd({ lines }: Chunk): void {
  while (lines.at(-1)?.sign === " " && lines.at(-1)?.text === "") lines.pop();
}

function withoutEmptyEnd(lines: readonly string[]): string[] {
  return lines.slice(0, lines.findLastIndex((line) => line !== "") + 1);
}

function unexpected(line: string, at: number, wanted: string): PatchSyntaxError {
  return new PatchSyntaxError(
    `line ${at + 1} of the patch is ${JSON.stringify(line.slice(0, 80))}; there must be ${wanted}.`,
  );
}
