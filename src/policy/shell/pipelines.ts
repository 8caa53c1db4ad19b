import { noEffects } from "./effects.ts";
import { interpret, interpreter, isInput } from "./interpreters.ts";
import type { CommandLine, SimpleCommand, Word } from "./line.ts";
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
    else if (readsProgram(command.words)) {
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
function readsProgram(words: readonly Word[]): boolean {
  const name = ({ value }: Word) => value.slice(value.lastIndexOf("/") + 1);
  const at = words.findIndex((word) => interpreter(name(word)) !== undefined || /^(\.|source)$/.test(word.value));
  const [outer, program] = [words[0], words[at]];
  if (!outer || !program || (at > 0 && !isWrapper(name(outer)))) return false;
  const own = interpreter(name(program));
  return own === undefined ? words.slice(at).some(isInput) : interpret(own, words.slice(at), undefined, noEffects());
}
