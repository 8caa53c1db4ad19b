import type { Plan } from "../../tool/tool.ts";
import { commandSearchPath } from "../process/confine-command.ts";
import type { Place } from "./mapping.ts";

/** A command line of an agent. */
export interface ForeignCommand {
  command: string;
  /** Directory to run in; default: that of the agent. */
  workdir?: string | undefined;
  description?: string | undefined;
  /** Reason to ask although rules allow the command. */
  alwaysAsk?: string | undefined;
}

/** Plans a command line like `bash`: it is analysed command by command, with the files that it touches. */
export async function planCommand(
  { command, workdir, description, alwaysAsk }: ForeignCommand,
  at: Place,
): Promise<Plan> {
  const directory = await at.resolve(workdir ?? ".");
  const about = description === undefined ? {} : { description };
  return {
    title: description || (command.trim().split("\n", 1)[0] ?? command),
    asks: at.asksIn(directory, {
      permission: "bash",
      patterns: [command],
      cwd: directory.absolute,
      metadata: { command, workdir: directory.pattern, ...about },
      ...(alwaysAsk !== undefined && { alwaysAsk }),
    }),
    cwd: directory.absolute,
    // The agent's own search path is not known; programs are looked up as the service would.
    ...(at.isDiskShared && { searchPath: commandSearchPath() }),
    inspect: async () => ({ preview: () => ({ command, paths: [directory.pattern] }) }),
  };
}
