import type { RunUpdate } from "../runner.ts";
import type { AcpHost } from "./acp-host.ts";
import type { AgentTraffic } from "./agent-stream.ts";

/** A configured program that runs agents over the Agent Client Protocol. */
export interface AcpProgram {
  name: string;
  command: string;
  args: readonly string[];
  env: Readonly<Record<string, string>>;
  /** Directory in which it works, below that of the session. */
  cwd: string;
}

/** Time limits of a run. */
export interface AcpTimes {
  /** For each step before the prompt: programs that start for the first time are slow. */
  startMs: number;
  /** Without a message, while no approver is waited for. */
  silenceMs: number;
  /** From the request to cancel to the kill. */
  cancelMs: number;
}

/** The limits of every run. */
export const acpTimes: AcpTimes = { startMs: 120_000, silenceMs: 1_800_000, cancelMs: 3_000 };

/** State that the runs of one program share. */
export interface AcpRuntime {
  host: AcpHost;
  program: AcpProgram;
  times: AcpTimes;
  traffic: AgentTraffic;
  /** The agent's own id of its session, by child session. */
  conversations: Map<string, string>;
}

/** Progress of a run. */
export type RunProgress = Omit<Extract<RunUpdate, { type: "progress" }>, "type">;
