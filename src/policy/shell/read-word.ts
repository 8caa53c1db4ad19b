import { type Cursor, take } from "./cursor.ts";
import { Opaque, reserved, type Word } from "./line.ts";

/** A word that is being read. */
interface WordDraft extends Word {
  /** The number of `$?` that it contains. */
  statusCount: number;
}

/** Reads a word, with what is quoted or escaped in it. Throws `Opaque` on anything that bash would expand in a way that is not known. */
export function readWord(cursor: Cursor, { isProgram }: { isProgram: boolean }): Word {
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
    if (character === "$") readDollar(cursor, word, bareDollarInQuotes);
    else if (character === "`") throw new Opaque("a command substitution");
    else word.value += readEscapedInQuotes(cursor);
  }
  cursor.at += 1;
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
