import { ToolErrorReason, type ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { isLostConnection, reasonOf } from "./api-failure.ts";
import type { ToolgateApi } from "./toolgate-api.ts";
import { type McpCall, type UncollectedCalls, uncollectedMs } from "./uncollected-calls.ts";

/** Returns the uncollected call that the same request continues; undefined if there is none whose result still counts. */
export async function takeUncollected(
  { api, uncollected }: { api: ToolgateApi; uncollected: UncollectedCalls },
  request: Omit<McpCall, "callId">,
): Promise<McpCall | undefined> {
  for (;;) {
    const call = uncollected.take(request);
    if (call === undefined) return undefined;
    const { sessionId, callId } = call;
    const found = await api.tools.getToolPart({ sessionId, callId }).catch((error: unknown) => {
      if (isLostConnection(error)) uncollected.add(call);
      if (reasonOf(error) === undefined || isLostConnection(error)) throw error;
      return undefined;
    });
    if (found?.part !== undefined && isCollectable(found.part)) return call;
  }
}

/** A result counts for a time; a call that was cancelled has none. */
function isCollectable({ state }: ToolPart): boolean {
  if (state.case === "error" && state.value.reason === ToolErrorReason.CANCELLED) return false;
  const end = state.case === "completed" || state.case === "error" ? state.value.time?.end : undefined;
  return end === undefined || Date.now() - end < uncollectedMs;
}
