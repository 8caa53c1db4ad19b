import type { JsonObject } from "@bufbuild/protobuf";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";

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
