import { z } from "zod";
import { locateProgram } from "../core/locate-program.ts";
import { strictTable } from "./check.ts";
import { ConfigError } from "./errors.ts";
import { checkOutside } from "./paths.ts";

/** The table of the processes that run tool files and plugins. */
export const toolsTable = strictTable({
  hosts: z.array(z.string().min(1)).optional(),
  env: z.array(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, { error: "the name of a variable" })).optional(),
  bun: z.string().min(1).optional(),
});

/** Settings of the processes that run tool files and plugins. */
export interface ToolProcessSettings {
  /** Wildcards of the hosts that they reach. */
  readonly hosts: readonly string[];
  /** Variables of the service's environment that they get, in addition to those of commands. */
  readonly env: Readonly<Record<string, string>>;
  /** Named variables that the service's environment lacks. */
  readonly unset: readonly string[];
  /** Path of Bun; undefined: the one that is found, if any. */
  readonly bun: string | undefined;
}

/** Returns warnings for `check-config`. */
export function toolProcessWarnings({ unset }: ToolProcessSettings): string[] {
  return unset.map((key) => `env under [tools] names the variable ${key}, which is not set; set it, or take it out`);
}

/** Reads the settings. Refuses a Bun that a tool could replace, or that is not there. */
export function readToolProcesses(
  { hosts = [], env: names = [], bun }: z.output<typeof toolsTable>,
  env: Readonly<Record<string, string | undefined>>,
  workspaces: ReadonlyMap<string, string>,
): ToolProcessSettings {
  if (bun !== undefined) {
    if (locateProgram(bun, undefined) === undefined)
      throw new ConfigError(`bun under [tools] names ${bun}, which is no program; install Bun there, or leave it out`);
    checkOutside(bun, "bun under [tools]", workspaces);
  }
  return {
    hosts,
    unset: names.filter((name) => env[name] === undefined),
    env: Object.fromEntries(names.flatMap((name) => (env[name] === undefined ? [] : [[name, env[name]]]))),
    bun,
  };
}
