/** A command line as far as it is understood. */
export interface Command {
  /** One program and its words, with nothing that a shell expands; else the line is opaque: it may hold anything. */
  simple: boolean;
  /** What rules are written for: the words joined by one space; of an opaque line the text without space around it. */
  text: string;
  /** Other spellings of the same line. They can only make a decision stricter. */
  spellings: readonly string[];
  /** The words of a simple line; of an opaque one none are known. */
  words: readonly string[];
}

/** Reads a command line. It never fails: what it does not understand is opaque. */
export function readCommand(line: string): Command {
  const words = line.split(" ").filter((word) => word !== "");
  if (!isSimple(line, words)) {
    const text = line.trim();
    return { simple: false, text, spellings: distinct([line, withoutFolder(text)], text), words: [] };
  }
  const text = words.join(" ");
  const inner = isWrapper(words[0]) ? words.map((_, i) => withoutFolder(words.slice(i).join(" "))) : [];
  return { simple: true, text, spellings: distinct([line, withoutFolder(text), ...inner], text), words };
}

/** The words of a simple line that may be paths: with a slash, or `..`; of `name=value` the value. */
export function pathWords(words: readonly string[]): string[] {
  const values = words.map((word) => word.slice(word.indexOf("=") + 1));
  return values.filter((word) => word.includes("/") || word === "..");
}

const maxBytes = 8_192;
const maxWrappedWords = 64;
const plain = /^[A-Za-z0-9 _./:=@%+,-]+$/;
/** Programs that run the words behind them. */
const wrappers = new Set(
  "builtin busybox chroot command coproc doas env eval exec ionice nice nohup setsid stdbuf strace sudo time timeout watch xargs".split(
    " ",
  ),
);

function isSimple(line: string, words: readonly string[]): boolean {
  if (line.length > maxBytes || !plain.test(line)) return false;
  const [program] = words;
  if (program === undefined || program.includes("=")) return false;
  return !isWrapper(program) || words.length <= maxWrappedWords;
}

function isWrapper(program: string | undefined): boolean {
  return program !== undefined && wrappers.has(withoutFolder(program));
}

/** The line with only the name of its program: `/bin/rm -r x` is `rm -r x`. */
function withoutFolder(line: string): string {
  const end = line.search(/\s/);
  const program = end === -1 ? line : line.slice(0, end);
  return line.slice(program.lastIndexOf("/") + 1);
}

function distinct(spellings: readonly string[], text: string): string[] {
  return [...new Set(spellings)].filter((spelling) => spelling !== text);
}
