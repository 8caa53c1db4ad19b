/** A line of a unified diff with its line numbers in the old and the new file. */
export interface DiffLine {
  readonly kind: "file" | "hunk" | "same" | "added" | "removed" | "note";
  readonly text: string;
  readonly before?: number;
  readonly after?: number;
}

/** Parses a unified diff; unknown lines become notes. */
export function parseDiff(diff: string): readonly DiffLine[] {
  const lines: DiffLine[] = [];
  let [before, after, left, right] = [0, 0, 0, 0];
  for (const text of diff.replace(/\n$/, "").split("\n")) {
    const isInHunk = left > 0 || right > 0;
    const hunk = isInHunk ? null : /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(text);
    if (hunk !== null) {
      [before, after] = [Number(hunk[1]), Number(hunk[3])];
      [left, right] = [Number(hunk[2] ?? 1), Number(hunk[4] ?? 1)];
      lines.push({ kind: "hunk", text });
    } else if (isInHunk && text.startsWith("+")) {
      lines.push({ kind: "added", text: text.slice(1), after: after++ });
      right -= 1;
    } else if (isInHunk && text.startsWith("-")) {
      lines.push({ kind: "removed", text: text.slice(1), before: before++ });
      left -= 1;
    } else if (isInHunk && !text.startsWith("\\")) {
      lines.push({ kind: "same", text: text.slice(1), before: before++, after: after++ });
      left -= 1;
      right -= 1;
    } else {
      lines.push({ kind: /^(\+\+\+|---) /.test(text) ? "file" : "note", text });
    }
  }
  return lines;
}

/** Counts the lines that a diff adds and removes. */
export function countChanges(lines: readonly DiffLine[]): { added: number; removed: number } {
  const count = (wanted: DiffLine["kind"]) => lines.filter(({ kind }) => kind === wanted).length;
  return { added: count("added"), removed: count("removed") };
}
