import { createHash } from "node:crypto";
import { ToolFailure } from "../../tool/errors.ts";
import type { ReadAt } from "../../tool/open-file.ts";
import { type MarkedEncoding, markedEncoding } from "../fs/file-kind.ts";
import { createLineWindow, type LineWindow } from "./line-window.ts";
import { notebookText } from "./notebook.ts";

/** A range of lines: `limit` lines from line `offset`, counted from 1. */
export interface WantedLines {
  offset: number;
  limit: number;
}

/** A source of text. */
export interface TextSource {
  /** Its name in the result. */
  name: string;
  readAt: ReadAt;
  size: number;
  /** Its first piece. */
  first: Uint8Array;
}

/** Bytes to read at a time. */
export const pieceLength = 65_536;

/** Larger texts are read no further than the shown lines. */
const maxWholeBytes = 64 * 1024 * 1024;
const maxNotebookBytes = 16 * 1024 * 1024;

/** Shows numbered lines of a text. The hash covers the whole text; undefined if the text was not read to its end. */
export async function showText(source: TextSource, wanted: WantedLines, signal: AbortSignal) {
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
