import type { Danger } from "./effects.ts";
import type { Word } from "./line.ts";

/**
 * The effect of an option. `flag` and `run` take no value, `maybe` only an attached one, `number` the next word only if that is one,
 * `next` always the next word, also where further letters follow; in `data` the text after `@` or `<` is a file; `line` is a command
 * line that it runs; `code` names code to load first; `run` runs a program or has another effect that needs an approver.
 */
export type Meaning = (typeof byWeight)[number];

/** The options of a program by effect, each list in one string: `-o --output`. */
export type OptionTable = Partial<Record<Meaning, string>>;

/** Gives several programs the same entry of a table. */
export const each = <Entry>(names: string, entry: Entry): Record<string, Entry> =>
  Object.fromEntries(names.split(" ").map((name) => [name, entry]));

/** A word that is an option, with its value if it has one. */
export interface Option {
  /** The canonical name: an abbreviated long option is written in full. */
  name: string;
  /** The option as written, if that is an abbreviation. */
  abbreviated?: string;
  /** Undefined if the option of the program is unknown. */
  means: Meaning | undefined;
  value?: Word;
  /** The index of the option among the words. */
  at: number;
}

/** A word that is not an option. */
export interface Operand {
  word: Word;
  at: number;
}

/** Splits the words after a program into options and operands. `end` is the index of the `--` between them; infinite without one. */
export type OptionReader = (
  words: readonly Word[],
  from: number,
  /** Ends the options at the first operand. */
  posix?: boolean,
) => { options: Option[]; operands: Operand[]; end: number };

/**
 * Creates the reader for a program's options: long ones exact, abbreviated or with `=value`; short ones alone, combined, or
 * with their value attached. An ambiguous abbreviation counts as the option with the strongest effect. The text after an
 * unknown letter is read both as its value and as further letters.
 */
export function optionReader(table: OptionTable): OptionReader {
  const meanings = new Map<string, Meaning>();
  for (const means of byWeight) {
    for (const name of (table[means] ?? "").split(" ").filter((name) => name !== "")) meanings.set(name, means);
  }

  function named(written: string): Pick<Option, "name" | "means" | "abbreviated"> {
    const exact = meanings.get(written);
    if (exact !== undefined || !written.startsWith("--")) return { name: written, means: exact };
    const possible = [...meanings].filter(([known]) => known.startsWith(written));
    const means = byWeight.findLast((means) => possible.some(([, one]) => one === means));
    const [name] = possible.find(([, one]) => one === means) ?? [];
    return name === undefined ? { name: written, means: undefined } : { name, means, abbreviated: written };
  }

  return (words, from, posix = false) => {
    const options: Option[] = [];
    const operands: Operand[] = [];
    let end = Number.POSITIVE_INFINITY;
    for (let at = from; at < words.length; at++) {
      const word = words[at] ?? nothing;
      const { value } = word;
      if (value === "--") {
        operands.push(...words.slice(at + 1).map((word, i) => ({ word, at: at + 1 + i })));
        end = at;
        break;
      }
      if (value.startsWith("+") && meanings.has("+")) {
        options.push({ name: value, means: meanings.get("+"), at });
        continue;
      }
      if (!value.startsWith("-") || value === "-") {
        if (posix) {
          operands.push(...words.slice(at).map((word, i) => ({ word, at: at + i })));
          break;
        }
        operands.push({ word, at });
        continue;
      }
      const found = value.startsWith("--") ? [long(word, at)] : short(word, at);
      options.push(...found);
      at += found.filter(({ means }) => means === "next").length;
      const last = found.at(-1);
      const next = words[at + 1];
      if (last?.value === undefined && last?.means !== undefined && next && takesNext(last.means, next)) {
        last.value = next;
        at += 1;
      }
    }
    return { options, operands, end };
  };

  function long(word: Word, at: number): Option {
    const equals = word.value.indexOf("=");
    if (equals === -1) return { ...named(word.value), at };
    return { ...named(word.value.slice(0, equals)), value: { ...word, value: word.value.slice(equals + 1) }, at };
  }

  function short(word: Word, at: number): Option[] {
    const equals = word.value.indexOf("=");
    const name = equals === -1 ? word.value : word.value.slice(0, equals);
    const whole = name.length > 2 ? meanings.get(name) : undefined;
    if (whole !== undefined) {
      const value = equals === -1 ? undefined : { ...word, value: word.value.slice(equals + 1) };
      return [{ name, means: whole, at, ...(value && { value }) }];
    }
    const found: Option[] = [];
    for (let i = 1; i < word.value.length; i++) {
      const name = `-${word.value[i]}`;
      const means = /\d/.test(name) ? (meanings.get("-1") ?? meanings.get(name)) : meanings.get(name);
      const rest = word.value.slice(i + 1);
      const isAlone = means === "flag" || means === "next";
      if (isAlone || rest === "") found.push({ name, means, at });
      else found.push({ name, means, at, value: { ...word, value: rest } });
      if (means !== undefined && !isAlone) break;
    }
    return found;
  }
}

const nothing: Word = { value: "", glob: false, status: false };
const byWeight = [
  "flag",
  "maybe",
  "number",
  "next",
  "text",
  "data",
  "look",
  "read",
  "write",
  "line",
  "code",
  "run",
] as const;
const takesValue: ReadonlySet<Meaning> = new Set(["text", "data", "look", "read", "write", "line", "code"] as const);
const takesNext = (means: Meaning, { value }: Word) =>
  takesValue.has(means) || (means === "number" && /^\s*[-+]?\d+$/.test(value));

/** Returns the dangers of a command's options: those that run something, unknown ones, and abbreviations, which another version of the program may read differently. */
export function dangersOf(program: string, options: readonly Option[]): Danger[] {
  return options.flatMap(({ name, means, at, abbreviated }) => {
    if (means === "run" || means === "code")
      return [{ at, why: `${program} ${name} runs a program or reaches elsewhere` }];
    if (means === undefined) return [{ at, why: `${program} ${name} is not known to be harmless` }];
    return abbreviated === undefined ? [] : [{ at, why: `${program} ${abbreviated} is an abbreviation of ${name}` }];
  });
}
