/** One word as bash passes it on, if nothing had to be expanded. */
export interface Word {
  /** Without its quotes. */
  value: string;
  /** It holds `*`, `?` or `[…]` outside quotes: bash puts the names of files in its place, if any fit. */
  glob: boolean;
  /** It holds `$?`, which stands for a number; `value` has it as it is written. */
  status: boolean;
}

/** `> file` or `< file`; what only joins or drops streams is not kept. */
export interface ShellRedirect {
  operator: "<" | ">" | ">>" | ">|" | "&>" | "&>>";
  /** The digit before the operator, or nothing. */
  descriptor: string;
  target: string;
}

/** One program and its words. */
export interface SimpleCommand {
  assignments: readonly { name: string; value: string }[];
  /** The program first; never empty. */
  words: readonly Word[];
  redirects: readonly ShellRedirect[];
  /** The text of a quoted here-document or a here-string: what it finds on its standard input. */
  input?: string;
}

/** What stands between a command and the one before it; `;` is also a line's end. */
export type Join = ";" | "&&" | "||" | "|";

/** A command line of simple commands, each with what joins it to the one before. */
export interface CommandLine {
  commands: readonly { join: Join; command: SimpleCommand }[];
}

/** Says why a line was not read: it may do anything. */
export class Opaque extends Error {
  override name = "Opaque";
}

/** Words with which bash begins something else than a simple command, unless they are quoted. */
export const reserved: ReadonlySet<string> = new Set(
  "! [[ ]] { } case coproc do done elif else esac fi for function if in select then time until while".split(" "),
);

/** Whether a redirect only joins standard output and error, or leads to or from nowhere. */
export function dropped(operator: string, target: string): boolean {
  if (operator === ">&") return target === "1" || target === "2";
  return operator === "<" ? target === "/dev/null" : sinks.has(target);
}

const sinks = new Set(["/dev/null", "/dev/stdout", "/dev/stderr"]);
