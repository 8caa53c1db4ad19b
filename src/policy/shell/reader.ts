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

/** Beyond this a person cannot read what they approve. */
const maxBytes = 8_192;
const maxSpaces = 64;

/**
 * Reads a line by a grammar that lists what it knows: simple commands, joined by `;`, newline, `&&`, `||` and `|`; words
 * in quotes or of plain characters; globs, `$?`, comments, redirects to files named literally, quoted here-documents.
 * It throws `Opaque` at anything else.
 */
export function readLine(text: string): CommandLine {
  if (Buffer.byteLength(text) > maxBytes) throw new Opaque(`longer than ${maxBytes} bytes`);
  if (!isVisible(text)) throw new Opaque("characters that are invisible or change how the rest is shown");
  if (text.includes(" ".repeat(maxSpaces + 1))) throw new Opaque(`more than ${maxSpaces} spaces in a row`);
  return createReader(text).line();
}

type Draft = {
  assignments: { name: string; value: string }[];
  words: Word[];
  redirects: ShellRedirect[];
  input?: string;
};

function createReader(text: string) {
  let at = 0;
  /** How many `$?` the word holds that is read. */
  let statuses = 0;
  /** Here-documents whose text begins behind the end of this line. */
  const awaited: { delimiter: string; command: Draft }[] = [];

  const starts = (piece: string) => text.startsWith(piece, at);
  function take(pattern: RegExp): string | undefined {
    pattern.lastIndex = at;
    const found = pattern.exec(text)?.[0];
    if (found !== undefined) at += found.length;
    return found;
  }

  /** Goes past blanks, comments, and line ends that are escaped; the last only behind a blank, where they join nothing. */
  function skipBlanks(): void {
    for (;;) {
      const from = at;
      take(blanks);
      const before = text[at - 1] ?? "\n";
      if (blankOrEnd.test(before) && starts("\\\n")) at += 2;
      if (/[ \t\n;&|]/.test(before) && starts("#")) take(comment);
      if (at === from) return;
    }
  }

  /** Goes past one line end and the here-documents that begin there. */
  function takeNewline(): boolean {
    if (!starts("\n")) return false;
    at += 1;
    for (const { delimiter, command } of awaited.splice(0)) command.input = takeDocument(delimiter);
    return true;
  }

  function takeDocument(delimiter: string): string {
    const from = at;
    for (;;) {
      const end = text.indexOf("\n", at);
      const line = text.slice(at, end === -1 ? undefined : end);
      if (line === delimiter) {
        const document = text.slice(from, at);
        at += line.length;
        // The line end behind the delimiter is left to end the command line.
        return document;
      }
      if (end === -1) throw new Opaque("a here-document without end");
      at = end + 1;
    }
  }

  function skipNewlines(): void {
    do skipBlanks();
    while (takeNewline());
  }

  /** What comes behind a command: how the next one is joined, or nothing at the end. */
  function takeJoin(): Join | undefined {
    skipBlanks();
    if (at === text.length) return undefined;
    const operator = take(operators);
    if (operator !== undefined && operator !== ";") {
      if (starts("\\")) throw new Opaque("an operator before a backslash");
      const join = operator === "&&" || operator === "||" || operator === "|" ? operator : undefined;
      if (join === undefined) throw new Opaque(`the operator ${operator}`);
      skipNewlines();
      return join;
    }
    if (operator === undefined && !starts("\n")) throw new Opaque(`the character ${JSON.stringify(text[at])}`);
    skipNewlines();
    return at === text.length ? undefined : ";";
  }

  function command(): SimpleCommand {
    const draft: Draft = { assignments: [], words: [], redirects: [] };
    for (skipBlanks(); !atEndOfCommand(); skipBlanks()) {
      if (takeRedirect(draft)) continue;
      const assigned = draft.words.length === 0 ? take(assignment) : undefined;
      if (assigned === undefined) draft.words.push(takeWord(draft.words.length === 0));
      else draft.assignments.push({ name: assigned.slice(0, -1), value: takeValue() });
    }
    if (draft.words.length === 0) throw new Opaque("no program");
    return draft;
  }

  function atEndOfCommand(): boolean {
    return /[;&|\n]/.test(text[at] ?? "\n") && !starts("&>");
  }

  function takeValue(): string {
    if (at === text.length || blankOrEnd.test(text[at] ?? "") || starts(";")) return "";
    const { value, glob, status } = takeWord(false);
    if (glob || status) throw new Opaque("an assignment of something to be expanded");
    return value;
  }

  function takeRedirect(draft: Draft): boolean {
    const operator = take(redirection);
    if (operator === undefined) return false;
    if (starts("\\")) throw new Opaque("a redirect before a backslash");
    if (take(descriptors) !== undefined) {
      if (!/^[12]?>&$/.test(operator)) throw new Opaque(`the redirect ${operator}`);
      return true;
    }
    const symbol = operator.replace(/^\d+/, "");
    const descriptor = operator.slice(0, -symbol.length);
    if (symbol === "<<" || symbol === "<<<") {
      takeInput(draft, symbol, descriptor);
      return true;
    }
    const kept = redirectOperators.find((known) => known === symbol);
    if (kept === undefined || !/^[012]?$/.test(descriptor)) throw new Opaque(`the redirect ${operator}`);
    const target = takeTarget();
    if (!dropped(kept, target)) draft.redirects.push({ operator: kept, descriptor, target });
    return true;
  }

  function takeTarget(): string {
    take(blanks);
    if (at === text.length || /[;&|\n#]/.test(text[at] ?? "")) throw new Opaque("a redirect without a file");
    const { value, glob, status } = takeWord(false);
    if (glob || status || value === "") throw new Opaque("a redirect to something to be expanded");
    return value;
  }

  function takeInput(draft: Draft, symbol: "<<" | "<<<", descriptor: string): void {
    if (descriptor !== "" && descriptor !== "0") throw new Opaque("input that is not standard input");
    if (draft.input !== undefined) throw new Opaque("more than one standard input");
    if (symbol === "<<<") {
      draft.input = `${takeTarget()}\n`;
      return;
    }
    const quoted = take(quotedDelimiter);
    if (quoted === undefined) throw new Opaque("a here-document in which bash expands");
    draft.input = "";
    awaited.push({ delimiter: quoted.trimStart().slice(1, -1), command: draft });
  }

  function takeWord(isProgram: boolean): Word {
    const from = at;
    const word = { value: "", glob: false, status: false };
    let isQuoted = false;
    statuses = 0;
    let set: number | undefined;
    for (;;) {
      const plain = take(plainCharacters);
      if (plain !== undefined) {
        word.value += plain;
        continue;
      }
      const character = text[at];
      if (character === undefined || /[\s;&|<>]/.test(character)) break;
      if (character === "'") word.value += takeSingleQuoted();
      else if (character === '"') takeDoubleQuoted(word);
      else if (character === "\\") word.value += takeEscaped();
      else if (character === "$") takeDollar(word, bareDollar);
      else if (character === "{") word.value += takeBraces();
      else if (/[*?[]/.test(character)) {
        if (character === "[") set ??= at;
        else word.glob = true;
        word.value += character;
        at += 1;
        continue;
      } else throw new Opaque(`the character ${JSON.stringify(character)}`);
      isQuoted ||= character !== "{" && character !== "$";
    }
    if (at === from) throw new Opaque(`the character ${JSON.stringify(text[at])}`);
    if (word.value.includes("\0")) throw new Opaque("a NUL character");
    if (word.status && word.value.split("$").length - 1 > statuses) throw new Opaque("$? beside another $");
    // A set needs its end; whether one that stands in quotes counts need not be known.
    if (set !== undefined && text.slice(set, at).includes("]")) word.glob = true;
    // Bash takes a backslash or quote inside a pattern for its own purposes.
    if (word.glob && (isQuoted || word.status)) throw new Opaque("a glob with parts that are no pattern");
    if (isProgram && !isQuoted && reserved.has(word.value)) throw new Opaque(`the shell word ${word.value}`);
    if (isProgram && (word.glob || word.status || word.value === "" || word.value.startsWith("%")))
      throw new Opaque("a program that is not named literally");
    return word;
  }

  function takeSingleQuoted(): string {
    const end = text.indexOf("'", at + 1);
    if (end === -1) throw new Opaque("a quote that is not closed");
    const value = text.slice(at + 1, end);
    at = end + 1;
    return value;
  }

  function takeDoubleQuoted(word: Word): void {
    at += 1;
    for (;;) {
      word.value += take(insideDoubleQuotes) ?? "";
      const character = text[at];
      if (character === '"') break;
      if (character === undefined) throw new Opaque("a quote that is not closed");
      if (character === "$") takeDollar(word, bareDollarInQuotes);
      else if (character === "`") throw new Opaque("a command substitution");
      else word.value += takeEscapedInQuotes();
    }
    at += 1;
  }

  function takeEscapedInQuotes(): string {
    const escaped = text[at + 1];
    if (escaped === "\n") throw new Opaque("an escaped line end in quotes");
    at += 1;
    if (escaped === undefined || !'$`"\\'.includes(escaped)) return "\\";
    at += 1;
    return escaped;
  }

  function takeEscaped(): string {
    const escaped = text[at + 1];
    if (escaped === undefined || !/[!-~ ]/.test(escaped)) throw new Opaque("an escaped line end inside a word");
    at += 2;
    return escaped;
  }

  function takeDollar(word: Word, bare: RegExp): void {
    if (take(exitStatus) !== undefined) {
      word.value += "$?";
      word.status = true;
      statuses += 1;
      return;
    }
    if (take(bare) === undefined) throw new Opaque("an expansion");
    word.value += "$";
  }

  function takeBraces(): string {
    const braces = take(literalBraces);
    if (braces === undefined) throw new Opaque("braces");
    return braces;
  }

  return {
    line(): CommandLine {
      const commands: { join: Join; command: SimpleCommand }[] = [];
      skipNewlines();
      for (let join: Join | undefined = ";"; join !== undefined; join = takeJoin()) {
        commands.push({ join, command: command() });
      }
      if (awaited.length > 0) throw new Opaque("a here-document without text");
      return { commands };
    },
  };
}

const blanks = /[ \t]+/y;
const blankOrEnd = /[ \t\n]/;
const comment = /#[^\n]*/y;
const operators = /&&|\|\||;;|;&|\|&|[;&|]/y;
const assignment = /[A-Za-z_][A-Za-z0-9_]*=/y;
const redirection = /\d*(?:<<<|<<-|<<|<>|<&|>>|>&|>\||[<>])|&>>|&>/y;
const redirectOperators = ["<", ">", ">>", ">|", "&>", "&>>"] as const;
const descriptors = /[12](?![^ \t\n;&|<>])/y;
const quotedDelimiter = /[ \t]*(?:'\w+'|"\w+")(?=[ \t\n;&|])/y;
/** What stands for itself outside quotes. A `~` that may be a home folder does not. */
const plainCharacters = /(?:[A-Za-z0-9_./:=@%+,^\]!#-]|(?<=[A-Za-z0-9_^}])~|(?![\0-\x7f])[\p{L}\p{N}])+/uy;
const insideDoubleQuotes = /[^"$`\\]+/y;
const exitStatus = /\$\?/y;
/** A `$` that no name, digit, bracket or quote follows. */
const bareDollar = /\$(?=[\s|;,./:]|$)/y;
const bareDollarInQuotes = /\$(?=["\s|;,./:)])/y;
/** Bash makes something else of `{a,b}`, `{1..3}` and `{name}>`. */
const literalBraces = /\{[A-Za-z0-9_-]*\}(?![<>])/y;
