import { blanks, type CommandDraft, type Cursor, startsWith, take } from "./cursor.ts";
import { dropped, Opaque } from "./line.ts";
import { readWord } from "./read-word.ts";

/** Reads a redirect into the command; false if none begins here. */
export function readRedirect(cursor: Cursor, draft: CommandDraft): boolean {
  const operator = take(cursor, redirection);
  if (operator === undefined) return false;
  if (startsWith(cursor, "\\")) throw new Opaque("a redirect before a backslash");
  if (take(cursor, descriptors) !== undefined) {
    if (!/^[12]?>&$/.test(operator)) throw new Opaque(`the redirect ${operator}`);
    return true;
  }
  const symbol = operator.replace(/^\d+/, "");
  const descriptor = operator.slice(0, -symbol.length);
  if (symbol === "<<" || symbol === "<<<") {
    readInput(cursor, draft, symbol, descriptor);
    return true;
  }
  const known = redirectOperators.find((known) => known === symbol);
  if (known === undefined || !/^[012]?$/.test(descriptor)) throw new Opaque(`the redirect ${operator}`);
  const target = readTarget(cursor);
  if (!dropped(known, target)) draft.redirects.push({ operator: known, descriptor, target });
  return true;
}

/** Reads the text of a here-document up to its delimiter. */
export function readHereDocument(cursor: Cursor, delimiter: string): string {
  const { text, at: from } = cursor;
  for (;;) {
    const end = text.indexOf("\n", cursor.at);
    const line = text.slice(cursor.at, end === -1 ? undefined : end);
    if (line === delimiter) {
      const document = text.slice(from, cursor.at);
      // The line end after the delimiter stays: it ends the command line.
      cursor.at += line.length;
      return document;
    }
    if (end === -1) throw new Opaque("a here-document without end");
    cursor.at = end + 1;
  }
}

function readTarget(cursor: Cursor): string {
  const { text } = cursor;
  take(cursor, blanks);
  if (cursor.at === text.length || /[;&|\n#]/.test(text[cursor.at] ?? "")) {
    throw new Opaque("a redirect without a file");
  }
  const { value, glob, status } = readWord(cursor, { isProgram: false });
  if (glob || status || value === "") throw new Opaque("a redirect to something to be expanded");
  return value;
}

/** Reads a here-string, or the delimiter of a here-document, whose text follows after the end of the line. */
function readInput(cursor: Cursor, draft: CommandDraft, symbol: "<<" | "<<<", descriptor: string): void {
  if (descriptor !== "" && descriptor !== "0") throw new Opaque("input that is not standard input");
  if (draft.input !== undefined) throw new Opaque("more than one standard input");
  if (symbol === "<<<") {
    draft.input = `${readTarget(cursor)}\n`;
    return;
  }
  const quoted = take(cursor, quotedDelimiter);
  if (quoted === undefined) throw new Opaque("a here-document in which bash expands");
  draft.input = "";
  cursor.awaited.push({ delimiter: quoted.trimStart().slice(1, -1), command: draft });
}

const redirection = /\d*(?:<<<|<<-|<<|<>|<&|>>|>&|>\||[<>])|&>>|&>/y;
const redirectOperators = ["<", ">", ">>", ">|", "&>", "&>>"] as const;
const descriptors = /[12](?![^ \t\n;&|<>])/y;
const quotedDelimiter = /[ \t]*(?:'\w+'|"\w+")(?=[ \t\n;&|])/y;
