import { isVisible } from "../display.ts";
import {
  type CommandLine,
  dropped,
  type Join,
  Opaque,
  reserved,
  type ShellRedirect,
  type SimpleCommand,
  type Word,
} from "./line.ts";

/** A longer line cannot be read by the person who approves it. */
const maxBytes = 8_192;
/** A line with more characters has more bytes, too. */
export const maxReadLength = maxBytes;
const maxSpaces = 64;

/**
 * Reads a line by a grammar that lists what it knows: simple commands, joined by `;`, newline, `&&`, `||` and `|`; words
 * in quotes or of plain characters; globs, `$?`, comments, redirects to files named literally, quoted here-documents.
 * Throws `Opaque` on anything else.
 */
export function readLine(text: string): CommandLine {
  if (Buffer.byteLength(text) > maxBytes) throw new Opaque(`longer than ${maxBytes} bytes`);
  if (!isVisible(text)) throw new Opaque("characters that are invisible or change how the rest is shown");
  if (text.includes(" ".repeat(maxSpaces + 1))) throw new Opaque(`more than ${maxSpaces} spaces in a row`);
  const cursor: Cursor = { text, at: 0, awaited: [] };
  const commands: { join: Join; command: SimpleCommand }[] = [];
  skipNewlines(cursor);
  for (let join: Join | undefined = ";"; join !== undefined; join = readJoin(cursor)) {
    commands.push({ join, command: readCommand(cursor) });
  }
  if (cursor.awaited.length > 0) throw new Opaque("a here-document without text");
  return { commands };
}

function readCommand(cursor: Cursor): SimpleCommand {
  const draft: CommandDraft = { assignments: [], words: [], redirects: [] };
  for (skipBlanks(cursor); !isEndOfCommand(cursor); skipBlanks(cursor)) {
    if (readRedirect(cursor, draft)) continue;
    const isFirst = draft.words.length === 0;
    const assigned = isFirst ? take(cursor, assignment) : undefined;
    if (assigned === undefined) draft.words.push(readWord(cursor, { isProgram: isFirst }));
    else draft.assignments.push({ name: assigned.slice(0, -1), value: readValue(cursor) });
  }
  if (draft.words.length === 0) throw new Opaque("no program");
  return draft;
}

/** Reads the operator after a command, which joins the next one; undefined at the end of the line. */
function readJoin(cursor: Cursor): Join | undefined {
  const { text } = cursor;
  skipBlanks(cursor);
  if (cursor.at === text.length) return undefined;
  const operator = take(cursor, operators);
  if (operator !== undefined && operator !== ";") {
    if (startsWith(cursor, "\\")) throw new Opaque("an operator before a backslash");
    const join = operator === "&&" || operator === "||" || operator === "|" ? operator : undefined;
    if (join === undefined) throw new Opaque(`the operator ${operator}`);
    skipNewlines(cursor);
    return join;
  }
  if (operator === undefined && !startsWith(cursor, "\n"))
    throw new Opaque(`the character ${JSON.stringify(text[cursor.at])}`);
  skipNewlines(cursor);
  return cursor.at === text.length ? undefined : ";";
}

function isEndOfCommand(cursor: Cursor): boolean {
  return /[;&|\n]/.test(cursor.text[cursor.at] ?? "\n") && !startsWith(cursor, "&>");
}

function readValue(cursor: Cursor): string {
  const { text, at } = cursor;
  if (at === text.length || blankOrEnd.test(text[at] ?? "") || startsWith(cursor, ";")) return "";
  const { value, glob, status } = readWord(cursor, { isProgram: false });
  if (glob || status) throw new Opaque("an assignment of something to be expanded");
  return value;
}

/** Skips blanks, comments and escaped line ends; the last only after a blank, where they join nothing. */
function skipBlanks(cursor: Cursor): void {
  for (;;) {
    const from = cursor.at;
    take(cursor, blanks);
    const before = cursor.text[cursor.at - 1] ?? "\n";
    if (blankOrEnd.test(before) && startsWith(cursor, "\\\n")) cursor.at += 2;
    if (/[ \t\n;&|]/.test(before) && startsWith(cursor, "#")) take(cursor, comment);
    if (cursor.at === from) return;
  }
}

function skipNewlines(cursor: Cursor): void {
  do skipBlanks(cursor);
  while (takeNewline(cursor));
}

/** Advances past one line end and the here-documents that begin there; false if there is none. */
function takeNewline(cursor: Cursor): boolean {
  if (!startsWith(cursor, "\n")) return false;
  cursor.at += 1;
  for (const { delimiter, command } of cursor.awaited.splice(0)) command.input = readHereDocument(cursor, delimiter);
  return true;
}

const comment = /#[^\n]*/y;
const operators = /&&|\|\||;;|;&|\|&|[;&|]/y;
const assignment = /[A-Za-z_][A-Za-z0-9_]*=/y;

/** Reads a redirect into the command; false if none begins here. */
function readRedirect(cursor: Cursor, draft: CommandDraft): boolean {
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
function readHereDocument(cursor: Cursor, delimiter: string): string {
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

const printedDocument = /\$\(cat[ \t]*<<[ \t]*(?:'\w+'|"\w+")\n/y;
const endOfSubstitution = /\n[ \t\n]*\)/y;

/** A word that is being read. */
interface WordDraft extends Word {
  /** The number of `$?` that it contains. */
  statusCount: number;
}

/** Reads a word, with what is quoted or escaped in it. Throws `Opaque` on anything that bash would expand in a way that is not known. */
function readWord(cursor: Cursor, { isProgram }: { isProgram: boolean }): Word {
  const { text, at: from } = cursor;
  const word: WordDraft = { value: "", glob: false, status: false, statusCount: 0 };
  let isQuoted = false;
  let setStart: number | undefined;
  for (;;) {
    const plain = take(cursor, plainCharacters);
    if (plain !== undefined) {
      word.value += plain;
      continue;
    }
    const character = text[cursor.at];
    if (character === undefined || /[\s;&|<>]/.test(character)) break;
    if (/[*?[]/.test(character)) {
      if (character === "[") setStart ??= cursor.at;
      else word.glob = true;
      word.value += character;
      cursor.at += 1;
      continue;
    }
    readSpecial(cursor, character, word);
    isQuoted ||= character !== "{" && character !== "$";
  }
  if (cursor.at === from) throw new Opaque(`the character ${JSON.stringify(text[cursor.at])}`);
  // A set needs its end; whether one that stands in quotes counts need not be known.
  if (setStart !== undefined && text.slice(setStart, cursor.at).includes("]")) word.glob = true;
  checkWord(word, isQuoted, isProgram);
  const { value, glob, status } = word;
  return { value, glob, status };
}

/** Reads a quoted or escaped part, an exit status, a bare `$` or literal braces. */
function readSpecial(cursor: Cursor, character: string, word: WordDraft): void {
  if (character === "'") word.value += readSingleQuoted(cursor);
  else if (character === '"') readDoubleQuoted(cursor, word);
  else if (character === "\\") word.value += readEscaped(cursor);
  else if (character === "$") readDollar(cursor, word, bareDollar);
  else if (character === "{") word.value += readBraces(cursor);
  else throw new Opaque(`the character ${JSON.stringify(character)}`);
}

function checkWord(word: WordDraft, isQuoted: boolean, isProgram: boolean): void {
  const { value, glob, status, statusCount } = word;
  if (value.includes("\0")) throw new Opaque("a NUL character");
  if (status && value.split("$").length - 1 > statusCount) throw new Opaque("$? next to another $");
  // Bash takes a backslash or quote inside a pattern for its own purposes.
  if (glob && (isQuoted || status)) throw new Opaque("a glob with parts that are no pattern");
  if (isProgram && !isQuoted && reserved.has(value)) throw new Opaque(`the shell word ${value}`);
  if (isProgram && (glob || status || value === "" || value.startsWith("%")))
    throw new Opaque("a program that is not named literally");
}

function readSingleQuoted(cursor: Cursor): string {
  const { text, at } = cursor;
  const end = text.indexOf("'", at + 1);
  if (end === -1) throw new Opaque("a quote that is not closed");
  cursor.at = end + 1;
  return text.slice(at + 1, end);
}

function readDoubleQuoted(cursor: Cursor, word: WordDraft): void {
  cursor.at += 1;
  for (;;) {
    word.value += take(cursor, insideDoubleQuotes) ?? "";
    const character = cursor.text[cursor.at];
    if (character === '"') break;
    if (character === undefined) throw new Opaque("a quote that is not closed");
    if (character === "$") {
      const printed = readPrinted(cursor);
      if (printed === undefined) readDollar(cursor, word, bareDollarInQuotes);
      else word.value += printed;
    } else if (character === "`") throw new Opaque("a command substitution");
    else word.value += readEscapedInQuotes(cursor);
  }
  cursor.at += 1;
}

/**
 * Reads a quoted here-document that `cat` alone prints into a word, as in `-m "$(cat <<'EOF' …)"`: its text, of which bash drops the
 * last line ends. Undefined if none begins here.
 */
function readPrinted(cursor: Cursor): string | undefined {
  // Of two here-documents it is not certain which one begins first.
  const start = cursor.awaited.length === 0 ? take(cursor, printedDocument) : undefined;
  if (start === undefined) return undefined;
  const document = readHereDocument(cursor, start.split(/['"]/)[1] ?? "");
  if (take(cursor, endOfSubstitution) === undefined) throw new Opaque("a command substitution");
  return document.replace(/\n+$/, "");
}

function readEscapedInQuotes(cursor: Cursor): string {
  const escaped = cursor.text[cursor.at + 1];
  if (escaped === "\n") throw new Opaque("an escaped line end in quotes");
  cursor.at += 1;
  if (escaped === undefined || !'$`"\\'.includes(escaped)) return "\\";
  cursor.at += 1;
  return escaped;
}

function readEscaped(cursor: Cursor): string {
  const escaped = cursor.text[cursor.at + 1];
  if (escaped === undefined || !/[!-~ ]/.test(escaped)) throw new Opaque("an escaped line end inside a word");
  cursor.at += 2;
  return escaped;
}

function readDollar(cursor: Cursor, word: WordDraft, bare: RegExp): void {
  if (take(cursor, exitStatus) !== undefined) {
    word.value += "$?";
    word.status = true;
    word.statusCount += 1;
    return;
  }
  if (take(cursor, bare) === undefined) throw new Opaque("an expansion");
  word.value += "$";
}

function readBraces(cursor: Cursor): string {
  const braces = take(cursor, literalBraces);
  if (braces === undefined) throw new Opaque("braces");
  return braces;
}

/** Characters that stand for themselves outside quotes. A `~` that may be a home directory does not. */
const plainCharacters = /(?:[A-Za-z0-9_./:=@%+,^\]!#-]|(?<=[A-Za-z0-9_^}])~|(?![\0-\x7f])[\p{L}\p{N}])+/uy;
const insideDoubleQuotes = /[^"$`\\]+/y;
const exitStatus = /\$\?/y;
/** A `$` that no name, digit, bracket or quote follows. */
const bareDollar = /\$(?=[\s|;,./:]|$)/y;
const bareDollarInQuotes = /\$(?=["\s|;,./:)])/y;
/** Braces that bash does not expand, unlike `{a,b}`, `{1..3}` and `{name}>`. */
const literalBraces = /\{[A-Za-z0-9_-]*\}(?![<>])/y;

/** A command that is being read. */
interface CommandDraft {
  assignments: { name: string; value: string }[];
  words: Word[];
  redirects: ShellRedirect[];
  input?: string;
}

/** The position in a command line that is being read. */
interface Cursor {
  readonly text: string;
  at: number;
  /** Here-documents whose text begins after the end of this line. */
  readonly awaited: { delimiter: string; command: CommandDraft }[];
}

/** Checks if the rest of the line starts with a text. */
function startsWith({ text, at }: Cursor, piece: string): boolean {
  return text.startsWith(piece, at);
}

/** Advances past what a sticky pattern matches, and returns it; undefined if it does not match. */
function take(cursor: Cursor, pattern: RegExp): string | undefined {
  pattern.lastIndex = cursor.at;
  const found = pattern.exec(cursor.text)?.[0];
  if (found !== undefined) cursor.at += found.length;
  return found;
}

/** Spaces and tabs. */
const blanks = /[ \t]+/y;
/** The characters that end a word like a blank does. */
const blankOrEnd = /[ \t\n]/;
