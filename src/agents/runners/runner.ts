import type { JsonObject } from "@bufbuild/protobuf";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../../core/call-ref.ts";

/** A program that runs models for agents: one that connected by `RunAgents`, or one that the configuration names. */
export interface AgentRunner {
  /** Name for people and logs, such as `acp:opencode`. */
  readonly name: string;
  /** Effects that its agents can have without asking here, as a sentence for approvers; empty if there are none. */
  readonly bypasses: string;
  /** Names of the agents that it can run now. */
  agents(): readonly string[];
  /** Returns true if it takes runs of sessions that this principal owns. */
  serves(principal: string): boolean;
  /** Number of runs that it can start now. */
  freeCapacity(): number;
  /**
   * Starts a run, or goes on with one that it holds. Yields its updates, of which `done` or `failed` is the last. When the run's
   * signal is aborted, the agent is stopped, nothing that it does afterwards has an effect here, and the iteration ends.
   */
  start(run: AgentRun): AsyncIterable<RunUpdate>;
  /** Set for a runner whose runs go on without this replica. */
  readonly surviving?: SurvivingRuns;
}

/** Runs that go on without the replica that started them. */
export interface SurvivingRuns {
  /** Returns true if the runner has this run: it was started here, or the runner reported it when it connected. */
  holds(run: string): boolean;
  /** Reports that the end of the run's call is recorded: the runner may forget the run. */
  settled(run: string): void;
}

/** A run of an agent, for one call of `task`. */
export interface AgentRun {
  /** Unique across replicas and restarts. */
  id: string;
  /** Session in which the agent makes its calls. It exists, and has the owner and workspace of the parent's session. */
  childSession: string;
  /** The call of `task`. */
  parentCall: CallRef;
  agent: string;
  prompt: string;
  /** Canonical path of the session's directory. */
  cwd: string;
  /** True if an earlier run of the child session is to be continued. */
  isResumed: boolean;
  /** Owner of both sessions. */
  principal: string;
  /** Aborted when the call ends before the run does; the reason is an error for the agent. */
  signal: AbortSignal;
}

/** Report of a run. Texts are written by the agent: they are bounded by the runner and escaped where they are shown. */
export type RunUpdate =
  | { type: "progress"; text?: string; title?: string }
  | { type: "done"; text: string }
  | { type: "failed"; message: string };

/** A call in its session. */
export interface SessionCall {
  sessionId: string;
  callId: string;
}

/** Calls that go on after the call that made them has ended, as tools use them. */
export interface BackgroundCalls {
  /** Makes a call for the body of another one, in the same session; returns its id. Repeated for one parent it is the same call. */
  start(parent: SessionCall, call: { tool: string; input: JsonObject }): Promise<string>;
  /** Returns the call; undefined if the session has none of that id, or one that was not made in the background. */
  find(call: SessionCall): Promise<ToolPart | undefined>;
  /** Returns the call when it has ended, or as it is after `ms`. */
  wait(call: SessionCall, ms: number, signal: AbortSignal): Promise<ToolPart>;
  /** Returns the title and metadata that the call of the session shows now, while it runs here. */
  shown(call: SessionCall): { title?: string; metadata?: JsonObject };
  /** Returns the name of the tool that was called last in a session; undefined if none of its last events is a call. */
  lastTool(sessionId: string): Promise<string | undefined>;
  /** Lists the open calls of a session. */
  openCalls(sessionId: string): Promise<ToolPart[]>;
  cancel(call: SessionCall, reason: string): Promise<ToolPart>;
}
