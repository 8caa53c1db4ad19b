import type { ShellRedirect, Word } from "./line.ts";

/** A command that is being read. */
export interface CommandDraft {
  assignments: { name: string; value: string }[];
  words: Word[];
  redirects: ShellRedirect[];
  input?: string;
}

/** The position in a command line that is being read. */
export interface Cursor {
  readonly text: string;
  at: number;
  /** Here-documents whose text begins after the end of this line. */
  readonly awaited: { delimiter: string; command: CommandDraft }[];
}

/** Checks if the rest of the line starts with a text. */
export function startsWith({ text, at }: Cursor, piece: string): boolean {
  return text.startsWith(piece, at);
}

/** Advances past what a sticky pattern matches, and returns it; undefined if it does not match. */
export function take(cursor: Cursor, pattern: RegExp): string | undefined {
  pattern.lastIndex = cursor.at;
  const found = pattern.exec(cursor.text)?.[0];
  if (found !== undefined) cursor.at += found.length;
  return found;
}

/** Spaces and tabs. */
export const blanks = /[ \t]+/y;
/** The characters that end a word like a blank does. */
export const blankOrEnd = /[ \t\n]/;
