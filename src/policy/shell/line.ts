/** One word as bash passes it to a program, if nothing is expanded. */
export interface Word {
  /** The text without quotes. */
  value: string;
  /** Contains `*`, `?` or `[…]` outside quotes: bash replaces it with the names of matching files, if there are any. */
  glob: boolean;
  /** Contains `$?`, which stands for a number; `value` holds it as written. */
  status: boolean;
}

/** A redirect such as `> file` or `< file`. Redirects that only join or drop streams are left out. */
export interface ShellRedirect {
  operator: "<" | ">" | ">>" | ">|" | "&>" | "&>>";
  /** The digit before the operator, or empty. */
  descriptor: string;
  target: string;
}

/** One program and its words. */
export interface SimpleCommand {
  assignments: readonly { name: string; value: string }[];
  /** The program first; never empty. */
  words: readonly Word[];
  redirects: readonly ShellRedirect[];
  /** Its standard input: the text of a quoted here-document or a here-string. */
  input?: string;
  /** The words of the commands whose output it reads through a pipe. */
  piped?: string;
}

/** The operator between a command and the one before it; `;` is also a line end. */
export type Join = ";" | "&&" | "||" | "|";

/** A command line of simple commands, each with what joins it to the one before. */
export interface CommandLine {
  commands: readonly { join: Join; command: SimpleCommand }[];
}

/** The reason why a line was not understood. Such a line may do anything. */
export class Opaque extends Error {
  override name = "Opaque";
}

/** Words that, unless quoted, begin something other than a simple command. */
export const reserved: ReadonlySet<string> = new Set(
  "! [[ ]] { } case coproc do done elif else esac fi for function if in select then time until while".split(" "),
);

/** Checks if a redirect only joins standard output and error, or uses a null device. */
export function dropped(operator: string, target: string): boolean {
  if (operator === ">&") return target === "1" || target === "2";
  return operator === "<" ? target === "/dev/null" : sinks.has(target);
}

const sinks = new Set(["/dev/null", "/dev/stdout", "/dev/stderr"]);
