import type { Readable, Writable } from "node:stream";
import type { JsonObject } from "@bufbuild/protobuf";
import type { AgentRun } from "../runner.ts";

/** Parts of the service that ACP runners use. */
export interface AcpHost {
  /** Describes the confinement of an agent's program, for people. */
  confinement(agent: string): string;
  /**
   * Starts a program in its own process group, confined to the run's directory by the rules that hold now. It ends with the
   * service, however that ends. `onStale` is called if rules or files change so that its confinement does not suffice any more.
   */
  start(program: ProgramStart, run: AgentRun, onStale: (problem: string) => void): Promise<AgentProcess>;
  /** Makes a token for the tools of Toolgate, bound to the child session of a run. */
  openTools(run: AgentRun): Promise<ToolAccess>;
  /** Judges a use of one of the agent's own tools in the child session, and waits for the answer if it asks. */
  begin(run: AgentRun, use: OwnToolUse, signal: AbortSignal): Promise<OwnToolDecision>;
  /** Records the result of a use that began. */
  finish(run: AgentRun, assignment: string, result: OwnToolResult): Promise<void>;
  /** Cancels a use that has not begun. */
  cancel(run: AgentRun, callId: string, reason: string): Promise<void>;
  log(message: string, fields: Readonly<Record<string, unknown>>): void;
}

/** Access to the tools of Toolgate for one run. */
export interface ToolAccess {
  /** Address of the MCP server. */
  url: string;
  token: string;
  /** Revokes the token. */
  close(): void;
}

/** A program to start. */
export interface ProgramStart {
  argv: readonly [string, ...string[]];
  cwd: string;
  /** The whole environment. */
  env: Readonly<Record<string, string>>;
}

/** A program that was started. */
export interface AgentProcess {
  stdin: Writable;
  stdout: Readable;
  stderr: Readable;
  /** Resolves with a description of its end, such as `exit code 1`. */
  exited: Promise<string>;
  /** Ends its process group and all its other processes. */
  kill(): Promise<void>;
}

/** A use of a tool that the agent runs itself. */
export interface OwnToolUse {
  callId: string;
  /** One of ACP's kinds of tools. */
  tool: string;
  input: JsonObject;
  cwd: string;
}

/** The decision about a use: it begins with the input that was approved, or it does not. */
export type OwnToolDecision =
  | { case: "begun"; assignment: string; input: JsonObject }
  | { case: "refused"; message: string };

/** The outcome of a use, as the agent reports it. */
export interface OwnToolResult {
  result: { case: "output" | "error"; value: string };
  exit?: number | undefined;
  /** The input that ran, if it is known to be another than the approved one. */
  ranInput?: JsonObject | undefined;
}

/** The end of a run without an answer: the reason, about the agent, for the calling model and for people. */
export class AgentFailure extends Error {
  override name = "AgentFailure";
}
