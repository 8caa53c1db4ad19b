import { createHash } from "node:crypto";
import type { Dirent } from "node:fs";
import { readdir, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import { bytesOf, openDirectory, type ReadAt, readBounded } from "../tool/open-file.ts";
import { similar } from "../tool/similar.ts";
import type { Plan, ToolContext, ToolResult } from "../tool/tool.ts";
import { filePath, type PathHandle } from "../tool/workspace.ts";
import {
  type AttachmentKind,
  attachmentKind,
  headLength,
  isBinary,
  type MarkedEncoding,
  markedEncoding,
} from "./fs/file-kind.ts";
import { nameOnOneLine } from "./fs/found-files.ts";
import { createLineWindow, type LineWindow } from "./read/line-window.ts";
import { notebookText } from "./read/notebook.ts";

const maxLines = 2_000;
const maxDirectoryBytes = 51_200;
const maxAttachmentBytes = 5 * 1024 * 1024;
const outputPrefix = "toolgate-output:";
/** Syntax of an output ID; it cannot lead out of the store. */
const outputId = /^[A-Za-z0-9_-]+$/;

/** Shows a file in numbered lines, a directory as a list, an image or a PDF as an attachment, a notebook as its cells. */
export const readTool = defineTool({
  name: "read",
  version: "1",
  description: [
    "Read a file or list a directory. Text is returned as numbered lines (`N: line`), at most 2,000 lines and 50 KB at a time;",
    "continue with offset. Images (JPEG, PNG, GIF, WebP) and PDF files are returned as attachments, notebooks (.ipynb) as their cells.",
    "`toolgate-output:ID` reads the whole output of an earlier call.",
  ].join(" "),
  input: z.object({
    filePath: filePath.describe("File or directory, absolute or relative to the workspace, or toolgate-output:ID"),
    offset: z
      .int()
      .min(0)
      .optional()
      .describe("First line or directory entry to show, counted from 1; 0 is the first one, too"),
    limit: z.int().positive().optional().describe("How many lines to show; default and most 2000"),
  }),
  permissions: ["read"],
  readOnly: true,
  idempotent: true,
  // Larger than the window, so that the output is not truncated again.
  keep: { lines: maxLines + 100, bytes: 65_536 },
  async plan({ filePath }, { workspace }): Promise<Plan & { path?: PathHandle; outputId?: string }> {
    // Reading the session tree's own outputs needs no ask.
    if (filePath.startsWith(outputPrefix)) {
      return { title: filePath, asks: [], outputId: filePath.slice(outputPrefix.length) };
    }
    const path = await workspace.resolve(filePath);
    return {
      title: path.pattern,
      asks: path.asks("read"),
      reveals: [path],
      path,
      async inspect() {
        using _ = await openExisting(path);
        return { preview: () => ({ paths: [path.pattern] }) };
      },
    };
  },
  async execute({ offset, limit }, ctx) {
    const window = { offset: offset || 1, limit: Math.min(limit ?? maxLines, maxLines) };
    const { path, outputId = "" } = ctx.plan;
    return path === undefined ? readOutput(outputId, window, ctx) : readPath(path, window, ctx);
  },
});

async function readPath(path: PathHandle, window: WantedLines, ctx: ToolContext): Promise<ToolResult> {
  using file = await openExisting(path);
  if (file.stats.isDirectory()) return await listDirectory(path, window);
  const source = { name: path.absolute, readAt: bytesOf(file), size: Number(file.stats.size) };
  const { sha256, ...result } = await show(source, window, ctx.signal);
  if (sha256 !== undefined) await ctx.reads.record(path.absolute, sha256);
  return result;
}

async function readOutput(id: string, window: WantedLines, ctx: ToolContext): Promise<ToolResult> {
  const read = async (offset: number, limit: number) => {
    const part = outputId.test(id) ? await ctx.outputs.read(id, offset, limit) : undefined;
    if (part !== undefined) return part;
    throw new ToolFailure(
      `There is no stored output ${id} in this session. Take the ID from an earlier call's output.`,
    );
  };
  const { total: size } = await read(0, 0);
  const readAt: ReadAt = async (offset, limit) => (await read(offset, limit)).data;
  const source = { name: `${outputPrefix}${id}`, readAt, size };
  const { sha256: _, ...result } = await show(source, window, ctx.signal);
  return result;
}

async function openExisting(path: PathHandle) {
  const file = path.open();
  if (file !== undefined) return file;
  const wanted = basename(path.absolute).toLowerCase();
  const directory = dirname(path.absolute);
  const names = await readdir(directory).catch(() => []);
  const parts = names.filter((name) => name.toLowerCase().includes(wanted) || wanted.includes(name.toLowerCase()));
  const candidates = [...new Set([...parts, ...similar(basename(path.absolute), names, 3)])]
    .slice(0, 3)
    .map((name) => join(directory, name));
  const suggestion = candidates.length === 0 ? "" : `\n\nDid you mean one of these?\n${candidates.join("\n")}`;
  throw new ToolFailure(`File not found: ${path.absolute}${suggestion}`);
}

async function show(source: Omit<TextSource, "first">, wanted: WantedLines, signal: AbortSignal) {
  const { name, readAt } = source;
  const first = await readAt(0, pieceLength);
  const head = first.subarray(0, headLength);
  const kind = attachmentKind(head);
  if (kind !== undefined) return attach(name, kind, readAt, signal);
  if (isBinary(name, head)) throw new ToolFailure(`Cannot read binary file: ${name}`);
  return showText({ ...source, first }, wanted, signal);
}

async function attach(name: string, { mime, word }: AttachmentKind, readAt: ReadAt, signal: AbortSignal) {
  const tooLarge = `${name} is over 5 MiB: too large to attach. Make it smaller.`;
  const { content, sha256 } = await readBounded(readAt, { maxBytes: maxAttachmentBytes, tooLarge }, signal);
  const text = `${word} read successfully`;
  return {
    output: text,
    metadata: { preview: text, truncated: false },
    attachments: [{ mime, filename: basename(name), data: content }],
    sha256,
  };
}

async function listDirectory({ absolute: directory }: PathHandle, { offset, limit }: WantedLines): Promise<ToolResult> {
  using opened = openDirectory(directory);
  const entries = await readdir(opened.path, { withFileTypes: true });
  entries.sort((a, b) => (a.name < b.name ? -1 : 1));
  if (offset > Math.max(entries.length, 1)) {
    throw new ToolFailure(`Offset ${offset} is out of range for this directory (${entries.length} entries)`);
  }
  const shown: string[] = [];
  let bytes = 0;
  for (const entry of entries.slice(offset - 1, offset - 1 + limit)) {
    bytes += Buffer.byteLength(entry.name) + 2;
    if (bytes > maxDirectoryBytes) break;
    const name = nameOnOneLine(entry.name);
    shown.push((await isDirectory(entry)) ? `${name}/` : name);
  }
  const last = offset - 1 + shown.length;
  const truncated = last < entries.length;
  const tail = truncated
    ? `(Showing ${shown.length} of ${entries.length} entries. Use 'offset' parameter to read beyond entry ${last})`
    : `(${entries.length} entries)`;
  return {
    output: [`<path>${directory}</path>`, "<type>directory</type>", "<entries>", ...shown, "", tail, "</entries>"].join(
      "\n",
    ),
    metadata: {
      preview: shown.slice(0, 20).join("\n"),
      truncated,
      totalLines: entries.length,
      shownLines: shown.length,
    },
  };
}

async function isDirectory(entry: Dirent): Promise<boolean> {
  if (!entry.isSymbolicLink()) return entry.isDirectory();
  const target = await stat(join(entry.parentPath, entry.name)).catch(() => undefined);
  return target?.isDirectory() ?? false;
}

/** A range of lines: `limit` lines from line `offset`, counted from 1. */
interface WantedLines {
  offset: number;
  limit: number;
}

/** A source of text. */
interface TextSource {
  /** Its name in the result. */
  name: string;
  readAt: ReadAt;
  size: number;
  /** Its first piece. */
  first: Uint8Array;
}

/** Bytes to read at a time. */
const pieceLength = 65_536;

/** Larger texts are read no further than the shown lines. */
const maxWholeBytes = 64 * 1024 * 1024;
const maxNotebookBytes = 16 * 1024 * 1024;

/** Shows numbered lines of a text. The hash covers the whole text; undefined if the text was not read to its end. */
async function showText(source: TextSource, wanted: WantedLines, signal: AbortSignal) {
  const { name, readAt, size, first } = source;
  const encoding = markedEncoding(first);
  const window = createLineWindow(wanted.offset, wanted.limit);
  const notebook: Buffer[] | undefined = name.endsWith(".ipynb") && size <= maxNotebookBytes ? [] : undefined;
  const add = notebook ? (chunk: Buffer) => notebook.push(chunk) : decoded(encoding, window.add);
  const hash = createHash("sha256");
  let piece = first;
  let offset = 0;
  while (piece.length > 0) {
    const chunk = Buffer.from(piece.buffer, piece.byteOffset, piece.length);
    hash.update(chunk);
    add(chunk);
    offset += chunk.length;
    if (size > maxWholeBytes && window.isFull()) {
      return { ...numbered(source, wanted, window.end(), encoding, true), sha256: undefined };
    }
    // Files of the kernel report size 0 but have content.
    const isAll = size > 0 && offset === size;
    signal.throwIfAborted();
    piece = isAll ? new Uint8Array() : await readAt(offset, pieceLength);
  }
  signal.throwIfAborted();
  if (notebook) window.add(cellsOf(Buffer.concat(notebook)));
  return { ...numbered(source, wanted, window.end(), encoding), sha256: hash.digest("hex") };
}

/** Converts chunks to UTF-8. */
function decoded(encoding: MarkedEncoding | undefined, add: (chunk: Buffer) => void) {
  if (encoding === undefined) return add;
  const decoder = new TextDecoder(encoding);
  return (chunk: Buffer) => add(Buffer.from(decoder.decode(chunk, { stream: true })));
}

const cellsOf = (json: Buffer) => Buffer.from(notebookText(json.toString()) ?? json);

function numbered(
  { name, size }: TextSource,
  { offset }: WantedLines,
  { text, shown, total, capped, isLatin1 }: LineWindow,
  encoding: MarkedEncoding | undefined,
  isPart = false,
) {
  if (offset > Math.max(total, 1)) {
    throw new ToolFailure(`Offset ${offset} is out of range for this file (${total} lines)`);
  }
  const last = offset + shown - 1;
  const truncated = isPart || last < total;
  const of = isPart ? ` of a file of ${size} bytes` : capped ? "" : ` of ${total}`;
  const range = `Showing lines ${offset}-${last}${of}. Use offset=${last + 1} to continue.`;
  const more = capped ? `(Output capped at 50 KB. ${range})` : `(${range})`;
  const tail = truncated ? more : `(End of file - total ${total} lines)`;
  const read = encoding ?? (isLatin1 ? "latin-1" : undefined);
  return {
    output: `<path>${name}</path>\n<type>file</type>\n<content>\n${text}\n${tail}\n</content>`,
    metadata: {
      preview: text
        .split("\n", Math.min(shown, 20))
        .map((line) => line.slice(line.indexOf(" ") + 1))
        .join("\n"),
      truncated,
      ...(!isPart && { totalLines: total }),
      shownLines: shown,
      ...(read !== undefined && { encoding: read }),
    },
  };
}
