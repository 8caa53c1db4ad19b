import { interpreter } from "./interpreters.ts";
import type { CommandLine, SimpleCommand } from "./line.ts";
import { spellCommand } from "./spelling.ts";
import { isWrapper } from "./wrappers.ts";

/** A pipeline at whose end an interpreter runs what it reads. */
export interface FeedingPipeline {
  /** Its canonical spelling: `curl -s URL | sh`. */
  text: string;
  /** The words of its commands. */
  stages: readonly (readonly string[])[];
}

/** Maximum commands of a pipeline, counted from its end. */
const maxStages = 8;

/** Finds the commands of a line that read their program from a pipe, each with its pipeline. */
export function pipelinesIn({ commands }: CommandLine): Map<SimpleCommand, FeedingPipeline> {
  const found = new Map<SimpleCommand, FeedingPipeline>();
  let start = 0;
  for (const [i, { join, command }] of commands.entries()) {
    if (join !== "|") start = i;
    else if (readsProgram(command.words.map(({ value }) => value))) {
      const stages = commands.slice(Math.max(start, i + 1 - maxStages), i + 1).map(({ command }) => command);
      const cut = i + 1 - start > maxStages ? "… | " : "";
      found.set(command, {
        text: cut + stages.map(spellCommand).join(" | "),
        stages: stages.map(({ words }) => words.map(({ value }) => value)),
      });
    }
  }
  return found;
}

/** Checks if a command, perhaps behind wrappers such as sudo, runs what it reads from its standard input. */
function readsProgram(words: readonly string[]): boolean {
  const isProgram = (word: string) => interpreter(nameOf(word)) !== undefined || /^(\.|source)$/.test(word);
  const at = isWrapper(nameOf(words[0] ?? "")) ? words.findIndex(isProgram) : isProgram(words[0] ?? "") ? 0 : -1;
  if (at === -1) return false;
  const rest = words.slice(at + 1);
  if (rest.some((word) => word === "-s" || word === "-" || /^\/(dev\/stdin|dev\/fd\/0|proc\/self\/fd\/0)$/.test(word)))
    return true;
  const isShell = /^(ba|da|z|k|a|mk|rba|fi)?sh$/.test(nameOf(words[at] ?? ""));
  const operands = rest.filter((word, i) => !word.startsWith("-") && rest[i - 1] !== "-o");
  return operands.length === 0 && !rest.some((word) => (isShell ? /^-[a-z]*c$/ : inlineProgram).test(word));
}

/** Options that carry the program of an interpreter, or that only report something. */
const inlineProgram = /^(-[a-zA-Z]*[ceEmrp]|--eval|--print|--command|--version|--help|-v|-V|-h)$/;

function nameOf(word: string): string {
  return word.slice(word.lastIndexOf("/") + 1);
}
