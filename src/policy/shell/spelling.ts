import { reserved, type SimpleCommand, type Word } from "./line.ts";
import { isHarmlessVariable } from "./programs.ts";

/** Writes words in the one spelling that bash reads as they are: plain where possible, otherwise quoted. */
export function spell(words: readonly Word[]): string {
  return words.map(spellWord).join(" ");
}

/** Writes the whole command, with its assignments and redirects. */
export function spellCommand({ assignments, words, redirects, input }: SimpleCommand): string {
  const line = [
    ...assignments.map(({ name, value }) => `${name}=${value === "" ? "" : spellWord({ ...plainWord, value }, 1)}`),
    spell(words),
    ...redirects.map(
      ({ descriptor, operator, target }) => `${descriptor}${operator} ${spellWord({ ...plainWord, value: target }, 1)}`,
    ),
  ].join(" ");
  if (input === undefined) return line;
  let delimiter = "EOF";
  while (input.split("\n").includes(delimiter)) delimiter += "_";
  return `${line} <<'${delimiter}'\n${input}${delimiter}`;
}

/** Checks if all variables that a command sets only change the format of output. */
export function setsOnlyHarmless({ assignments }: SimpleCommand): boolean {
  return assignments.every(({ name }) => isHarmlessVariable(name));
}

const plainWord: Word = { value: "", glob: false, status: false };

function spellWord({ value, glob, status }: Word, at: number): string {
  if (status) return `"${value.replace(/["\\`]|\$(?!\?)/g, "\\$&")}"`;
  if (glob || isPlain(value, at)) return value;
  return `'${value.replaceAll("'", "'\\''")}'`;
}

function isPlain(value: string, at: number): boolean {
  if (at === 0 && (reserved.has(value) || /^\w+=/.test(value))) return false;
  return value === "[" || /^[A-Za-z0-9_./:=@%+,^\]!-](?:[A-Za-z0-9_./:=@%+,^\]!#-]|(?<=[A-Za-z0-9_^])~)*$/.test(value);
}
