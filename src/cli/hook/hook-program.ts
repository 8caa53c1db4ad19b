/**
 * The program that `toolgate connect` writes into the settings of agents: `hook.cjs KIND --server URL …`. An agent starts it for each use
 * of a tool, so it brings no command line, no messages and no gRPC. `toolgate hook` does the same.
 */
import { writeSync } from "node:fs";
import { blockingExitCode, type HookKindName, type HookOptions, hookKinds, hookTimeout, runHook } from "./run-hook.ts";

const names: Readonly<Record<string, Exclude<keyof HookOptions, "token"> | undefined>> = {
  "--server": "server",
  "--token-file": "tokenFile",
  "--uid": "uid",
  "--certificate": "certificate",
  "--ca": "ca",
  "--cert": "cert",
  "--key": "key",
  "--mcp": "mcp",
  "--timeout": "timeout",
};

function isKind(name: string): name is HookKindName {
  return hookKinds.some((each) => each === name);
}

function readOptions(rest: readonly string[]): HookOptions {
  const options: HookOptions = { timeout: hookTimeout };
  for (let i = 0; i < rest.length; i += 2) {
    const [word = "", value] = rest.slice(i, i + 2);
    const name = names[word];
    if (name === undefined || value === undefined) return refuse(`${word} is not an option, or has no value`);
    if (name !== "uid" && name !== "timeout") options[name] = value;
    else if (/^\d{1,10}$/.test(value)) options[name] = Number(value);
    else return refuse(`${word} is not a number`);
  }
  return options;
}

/** Ends with the code that blocks the tool. */
function refuse(reason: string): never {
  writeSync(2, `Toolgate: ${reason}. Nothing was run.\n`);
  process.exit(blockingExitCode);
}

const [kind = "", ...words] = process.argv.slice(2);

if (isKind(kind)) void runHook(kind, readOptions(words), process);
else refuse(`"${kind}" is not a kind of agent: ${hookKinds.join(", ")}`);
