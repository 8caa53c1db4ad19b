import { createInterface } from "node:readline/promises";
import type { CliProcess } from "../context.ts";
import { UsageError } from "../failure/command-error.ts";
import { hasTerminal } from "./prompt.ts";

/** Asks a question that y answers with yes; anything else is no. Needs a terminal. */
export async function confirmAtTerminal(io: CliProcess, question: string): Promise<boolean> {
  if (!hasTerminal(io))
    throw new UsageError("there is no terminal to answer at", "add --yes to go on without a question");
  const reader = createInterface({ input: io.stdin, output: io.stderr });
  try {
    return /^y(es)?$/i.test((await reader.question(`${question} [y/N] `)).trim());
  } finally {
    reader.close();
  }
}
