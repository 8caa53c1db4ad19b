import { homedir } from "node:os";
import { connect } from "../e2e/clients.ts";
import { read } from "../e2e/reading.ts";
import { createService, type Service } from "../e2e/service.ts";

/** Settings under which commands run in the default sandbox, and those of the agent `open` without one. */
export const commandSettings = (rules = "") => `
[sandbox.agent.open]
profile = "off"
[agent.open]
description = "runs without the sandbox"
[agent.open.permission]
"*" = "allow"
[permission]
bash = "allow"
edit = "allow"
${rules}`;

/** A service for commands, which sees the toolchains of the machine and of the real home directory. */
export const serviceForCommands = (rules = "") =>
  createService({ settings: commandSettings(rules), env: { HOME: homedir(), PATH: machinePath() } });

/** Returns PATH without our own programs: npm looks for its settings (a private authority, say) beside the Node that runs it. */
const machinePath = () =>
  (process.env.PATH ?? "")
    .split(":")
    .filter((folder) => !folder.endsWith("node_modules/.bin"))
    .join(":");

/** Facts about a command in its result. */
interface CommandMetadata {
  readonly exit: number | null;
  readonly sandbox: { readonly profile: string; readonly layers: readonly string[] };
  readonly network?: {
    readonly hosts: readonly { readonly host: string; readonly receivedBytes: number }[];
    readonly refused: readonly { readonly url: string; readonly reason: string }[];
  };
}

/** Runs a command line in a new session; returns the end of what it printed, and the metadata of its result. */
export async function runLine(service: Service, agent: "build" | "open", command: string, workdir = ".") {
  const { tools, newSession } = connect(service, "caller");
  const sessionId = await newSession({ agent });
  const input = { command, workdir, timeout: 400_000 };
  const { state } = await read(tools.executeTool({ sessionId, callId: "c1", agent, tool: "bash", input })).end();
  if (state.case !== "completed") throw new Error(`${command} did not run: ${JSON.stringify(state.value)}`);
  const { output, metadata } = state.value;
  return { output, metadata: metadata as unknown as CommandMetadata };
}
