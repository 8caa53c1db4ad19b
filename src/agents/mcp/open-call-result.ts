import type { CallToolResult } from "@modelcontextprotocol/server";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { asksQuestions } from "../../view/questions.ts";
import { riskKinds } from "../../view/risks.ts";
import type { HeldCall, McpCallView } from "./hold-call.ts";

/** Name of the tool that waits for a call. */
export const waitToolName = "toolgate_wait";

/** A call that is still open at the end of its hold. */
export interface OpenCall extends HeldCall {
  readonly sessionId: string;
  readonly callId: string;
  /** Address of the console. */
  readonly url: string;
}

/** Returns the id by which `toolgate_wait` finds a call. */
export function callHandle({ sessionId, callId }: { sessionId: string; callId: string }): string {
  return `${sessionId}/${callId}`;
}

/** Reads the id of a call; one without a session is of the client's own session. */
export function readCallHandle(handle: string, ownSessionId: string): { sessionId: string; callId: string } {
  const [, sessionId = ownSessionId, callId = handle] = /^(ses[A-Za-z0-9_-]{1,61})\/(.+)$/.exec(handle) ?? [];
  return { sessionId, callId };
}

/** Reports to the model that a call has no result yet. It is no error: nothing has been refused. */
export function openCallResult(call: OpenCall): CallToolResult {
  const { sessionId, callId } = call;
  return {
    content: [{ type: "text", text: [...factsOf(call), ...nextStepOf(call)].join("\n") }],
    _meta: { "toolgate/sessionId": sessionId, "toolgate/callId": callId, "toolgate/state": stateOf(call) },
  };
}

/** Describes in one line what a call waits for, for progress. */
export function progressText(view: McpCallView | undefined): string {
  if (view === undefined) return "the connection to Toolgate is lost; trying again";
  const { part, permissions } = view;
  if (part.state.case === "running") return `running: ${part.state.value.title || part.tool}`;
  const [first] = permissions;
  if (first === undefined) return "waiting to start";
  return `waiting for ${permissions.some(asksQuestions) ? "an answer" : "approval"}: ${askedFor(first)}`;
}

/** Describes to the person at the client what the link is for. */
export function linkText(view: McpCallView | undefined): string {
  const permissions = view?.permissions ?? [];
  const what = permissions.some(asksQuestions) ? "a person to answer" : "an approver before this runs";
  return `Toolgate asks ${what}: ${permissions.map(askedFor).join("; ")}`;
}

function stateOf({ view, isLost }: HeldCall): "unknown" | "running" | "waiting" {
  if (isLost || view === undefined) return "unknown";
  return view.part.state.case === "running" ? "running" : "waiting";
}

function factsOf({ view, isLost, url }: OpenCall): string[] {
  if (isLost || view === undefined)
    return ["The connection to Toolgate was lost. The outcome of this call is not known yet; it is not run twice."];
  const { part, permissions } = view;
  if (part.state.case === "running")
    return ["This call has started and is still running. It has no result yet.", "Do not start it again."];
  const [first] = permissions;
  if (first === undefined) return ["Nothing has run yet: this call waits to be started."];
  return [
    `Nothing has run yet: this call waits for a person to ${permissions.some(asksQuestions) ? "answer" : "approve"} it.`,
    ...permissions.slice(0, 10).map((request) => `- ${askedFor(request)}`),
    `An approver answers at ${linkToRequest(url, first)} or with \`toolgate inbox\`.`,
  ];
}

function nextStepOf(call: OpenCall): string[] {
  return [
    `To wait for its result, call the tool \`${waitToolName}\` with ${JSON.stringify({ call_id: callHandle(call) })}.`,
    "The same call again continues this one; a different call is asked for again.",
  ];
}

/** Returns the link to a request in the console. It carries no credential. */
export function linkToRequest(url: string, { id }: Pick<PermissionRequest, "id">): string {
  return `${url}/r/${encodeURIComponent(id)}`;
}

/** The forms that are displayed to approvers are safe: the service escapes what could deceive. */
function askedFor(request: PermissionRequest): string {
  const { permission, display } = request;
  const risks = riskKinds([request]).map(({ words }) => words);
  const patterns = display.join(", ");
  const shown = patterns.length > 500 ? `${patterns.slice(0, 500)}…` : patterns;
  return `${permission}: ${shown}${risks.length > 0 ? ` (${risks.join(", ")})` : ""}`;
}
