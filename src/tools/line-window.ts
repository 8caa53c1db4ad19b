const longestLine = 2_000;
const mostBytes = 51_200;
/** What holds `longestLine` characters and one more, in the longest encoding. */
const keptBytes = (longestLine + 1) * 4;

/** A part of a text, by lines. */
export interface LineWindow {
  lines: string[];
  /** How many lines the whole text has. */
  total: number;
  /** Whether the window ended early, because it grew too large. */
  capped: boolean;
}

/** Collects lines `offset` (1-based) to `offset + limit - 1` of a text that arrives in chunks; it keeps no more than it shows. */
export function createLineWindow(offset: number, limit: number) {
  const lines: string[] = [];
  let total = 0;
  let bytes = 0;
  let capped = false;
  let line: { pieces: Uint8Array[]; kept: number; length: number } = { pieces: [], kept: 0, length: 0 };

  const isWanted = () => !capped && total + 1 >= offset && total + 1 < offset + limit;

  function extend(piece: Uint8Array): void {
    line.length += piece.length;
    if (!isWanted() || line.kept >= keptBytes) return;
    const kept = piece.subarray(0, keptBytes - line.kept);
    line.pieces.push(kept);
    line.kept += kept.length;
  }

  function endLine(): void {
    if (isWanted()) {
      const text = cut(Buffer.concat(line.pieces).toString("utf8"));
      bytes += Buffer.byteLength(text) + String(total + 1).length + 3;
      capped = bytes > mostBytes;
      if (!capped) lines.push(text);
    }
    total += 1;
    line = { pieces: [], kept: 0, length: 0 };
  }

  return {
    add(chunk: Uint8Array): void {
      let start = 0;
      for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10, start)) {
        extend(chunk.subarray(start, end));
        endLine();
        start = end + 1;
      }
      if (start < chunk.length) extend(chunk.subarray(start));
    },
    /** Call it once, after the last chunk. */
    end(): LineWindow {
      if (line.length > 0) endLine();
      return { lines, total, capped };
    },
  };
}

function cut(line: string): string {
  const text = line.endsWith("\r") ? line.slice(0, -1) : line;
  if (text.length <= longestLine) return text;
  const characters = Array.from(text);
  if (characters.length <= longestLine) return text;
  return `${characters.slice(0, longestLine).join("")}... (line truncated to ${longestLine} chars)`;
}
