import { describe, expect, test } from "vitest";
import { type CommandLine, Opaque } from "../../../src/policy/shell/line.ts";
import { readLine } from "../../../src/policy/shell/reader.ts";
import { confirm } from "../../../src/policy/shell/second-reading.ts";
import { spellCommand } from "../../../src/policy/shell/spelling.ts";
import { seed } from "../../seed.ts";
import { lineMaker, random } from "./lines.ts";
import { type Given, runByBash, statusOf, stubs } from "./stubs.ts";

type Read = (text: string) => CommandLine;

const long = process.env.TOOLGATE_LONG === "1";
const count = long ? 1_000_000 : 20_000;
const batch = 4_000;

const both: Read = (text) => {
  const line = readLine(text);
  confirm(line, text);
  return line;
};

/** Lines that a reader calls simple, with its result; only lines that run stubs alone, and write to no other place. */
function* simpleLines(read: Read, from: number): Generator<{ text: string; line: CommandLine }, never> {
  const make = lineMaker(random(from), stubs);
  for (;;) {
    const text = make();
    try {
      const line = read(text);
      const isOurs = line.commands.every(
        ({ command: { words, redirects } }) =>
          stubs.includes(words[0]?.value ?? "") && redirects.every(({ target }) => !/^\/|\.\./.test(target)),
      );
      if (isOurs) yield { text, line };
    } catch (cause) {
      if (!(cause instanceof Opaque)) throw cause;
    }
  }
}

/** The programs that bash must run if a reading is right: the argv of each, within a pipeline in any order. */
function expectedCalls({ commands }: CommandLine): string[][] {
  const calls: string[][] = [];
  let status = 0;
  let before = 0;
  let runs = true;
  for (const { join, command } of commands) {
    if (join !== "|") {
      before = status;
      runs = join === ";" || (join === "&&") === (status === 0);
    }
    if (!runs) continue;
    const argv = command.words.map(({ value, status }) => (status ? value.replaceAll("$?", String(before)) : value));
    calls.push(argv);
    status = statusOf(argv[0] ?? "");
  }
  return calls;
}

/** Returns the first line for which bash ran other programs than the reader returned. */
function firstDifference(read: Read, from: number, lines: number): string | undefined {
  const source = simpleLines(read, from);
  for (let done = 0; done < lines; done += batch) {
    const given = Array.from({ length: Math.min(batch, lines - done) }, () => source.next().value);
    const texts = given.map(({ text, line }): Given => ({ text, noGlob: hasGlob(line) }));
    const ran = runByBash(texts);
    const wrong = given.findIndex(({ line }, i) => !agrees(line, ran[i] ?? []));
    const found = given[wrong];
    if (found)
      return `${JSON.stringify(found.text)}: ${JSON.stringify(expectedCalls(found.line))} but ${JSON.stringify(ran[wrong])}`;
  }
  return undefined;
}

function hasGlob({ commands }: CommandLine): boolean {
  return commands.some(({ command }) => command.words.some(({ glob }) => glob));
}

function agrees(line: CommandLine, ran: readonly string[][]): boolean {
  const sorted = (calls: readonly string[][]) => calls.map((argv) => JSON.stringify(argv)).toSorted();
  const expected = sorted(expectedCalls(line));
  const actual = sorted(ran);
  // A redirect may fail; then its program does not run, nor do commands that depend on it.
  const mayFail = line.commands.some(({ command }) => command.redirects.length > 0);
  if (mayFail) return ran.every((argv) => possible(line).has(JSON.stringify(argv)));
  return expected.length === actual.length && expected.every((call, i) => call === actual[i]);
}

/** Every argv that a line names, whatever the status of the commands before it. */
function possible({ commands }: CommandLine): Set<string> {
  return new Set(
    commands.flatMap(({ command: { words } }) =>
      ["0", "1", "3"].map((status) =>
        JSON.stringify(words.map((word) => (word.status ? word.value.replaceAll("$?", status) : word.value))),
      ),
    ),
  );
}

describe(`with TOOLGATE_SEED=${seed}`, () => {
  test(`what is read as simple has the argv that bash gives it, ${count} lines`, {
    timeout: long ? 7_200_000 : 600_000,
  }, () => {
    expect(firstDifference(both, seed, count) ?? "none").toBe("none");
  });

  test("the canonical spelling of a command is read as the same command", () => {
    for (const { line } of simpleLines(both, seed + 1).take(2_000)) {
      for (const { command } of line.commands) {
        const text = spellCommand(command);
        const { commands } = both(text);
        expect(commands.map(({ command }) => command)).toEqual([command]);
      }
    }
  });

  test.each<[string, (line: CommandLine) => CommandLine]>([
    ["loses backslashes", changed((value) => value.replaceAll("\\", ""))],
    ["takes line ends for spaces", changed((value) => value.replaceAll("\n", " "))],
    [
      "takes || for &&",
      ({ commands }) => ({ commands: commands.map((one) => ({ ...one, join: one.join === "||" ? "&&" : one.join })) }),
    ],
    [
      "loses empty words",
      ({ commands }) => ({
        commands: commands.map(({ join, command }) => ({
          join,
          command: { ...command, words: command.words.filter(({ value }) => value !== "") },
        })),
      }),
    ],
    [
      "sees no globs",
      ({ commands }) => ({
        commands: commands.map(({ join, command }) => ({
          join,
          command: { ...command, words: command.words.map((word) => ({ ...word, glob: false })) },
        })),
      }),
    ],
  ])("detects a reader that %s", (_, weaken) => {
    expect(firstDifference((text) => weaken(both(text)), seed, 1_000)).toBeDefined();
  });
});

/** Applies a mistake to every word of a reading. */
function changed(change: (value: string) => string): (line: CommandLine) => CommandLine {
  return ({ commands }) => ({
    commands: commands.map(({ join, command }) => ({
      join,
      command: { ...command, words: command.words.map((word) => ({ ...word, value: change(word.value) })) },
    })),
  });
}
