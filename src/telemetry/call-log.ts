import type { Requester } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Logger } from "../core/logger.ts";
import { describeEnd } from "./end.ts";
import { forLog, textForLog } from "./redact.ts";

/** Logs one line for a call that ended: tool, duration, outcome, and its redacted and truncated input and output. */
export function logEnd(log: Logger, part: ToolPart): void {
  const { sessionId, callId, agent, requester, tool } = part;
  const { success, reason, commandFailure, durationMs, outputBytes } = describeEnd(part);
  const state = part.state.value;
  log.info("call ended", {
    service: `tool.${tool}`,
    sessionId,
    callId,
    agent,
    ...(requester && { requester: requesterForLog(requester) }),
    duration: durationMs ?? 0,
    ...(success !== undefined && { success }),
    ...(reason !== undefined && { reason }),
    ...(commandFailure && { exit: commandFailure.exit, signal: commandFailure.signal }),
    args: forLog(state?.input ?? {}),
    result: {
      bytes: outputBytes,
      ...(part.state.case === "completed" && {
        title: textForLog(part.state.value.title),
        text: textForLog(part.state.value.output),
      }),
      ...(part.state.case === "error" && { error: textForLog(part.state.value.error) }),
    },
  });
}

function requesterForLog({ kind, place, subagent }: Requester): unknown {
  return forLog({ kind, place, subagent });
}
