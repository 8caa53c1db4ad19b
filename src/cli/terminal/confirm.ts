import { createInterface } from "node:readline/promises";
import type { CliProcess } from "../context.ts";
import { UsageError } from "../failure/command-error.ts";
import { hasTerminal } from "./prompt.ts";

/** Asks a question that y answers with yes; anything else is no. Needs a terminal. */
export async function confirmAtTerminal(io: CliProcess, question: string): Promise<boolean> {
  if (!hasTerminal(io))
    throw new UsageError("there is no terminal to answer at", "add --yes to go on without a question");
  return isYes(await askAtTerminal(io, `${question} [y/N] `));
}

/** Tests for an answer that says yes. */
export const isYes = (answer: string): boolean => /^y(es)?$/i.test(answer);

/** Asks a question, and returns the answer without white space around it. */
export async function askAtTerminal(io: CliProcess, question: string): Promise<string> {
  const reader = createInterface({ input: io.stdin, output: io.stderr });
  try {
    return (await reader.question(question)).trim();
  } finally {
    reader.close();
  }
}
