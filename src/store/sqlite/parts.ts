import { create } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { encodeMessage } from "../../core/encode-message.ts";
import { withoutLargeInput } from "../parts.ts";
import type { Step } from "./commit.ts";
import type { SqliteLog } from "./log.ts";

/** A part as its record stores it: with its whole input and the sequence number of its event, and its binary form. */
export interface WrittenSqlitePart {
  part: ToolPart;
  snapshot: Uint8Array;
}

/** Appends a call's new snapshot to the log of its session; a large input is emitted only with the pending part. */
export function writePart(step: Step, log: SqliteLog, sessionId: string, given: ToolPart): WrittenSqlitePart {
  const revision = BigInt(log.nextSeq(sessionId));
  const part: ToolPart = { ...given, sessionId, permissionIds: [], revision, inputElided: false };
  const emitted = part.state.case === "pending" ? part : withoutLargeInput(part);
  const bytes = log.append(step, sessionId, { case: "part", value: emitted });
  if (emitted === part) return { part, snapshot: bytes };
  const whole = create(SessionEventSchema, { event: { case: "part", value: part } });
  return { part, snapshot: encodeMessage(SessionEventSchema, whole) };
}
