import { create } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { encodeMessage } from "../../core/encode-message.ts";
import { tombstone, withoutLargeInput } from "../parts.ts";
import { encodeEvent } from "./events.ts";
import type { StepBytes } from "./link.ts";

/** A part as its record keeps it, but for the number of its event; and the bytes a step needs to write it. */
export interface WrittenRedisPart {
  part: ToolPart;
  bytes: StepBytes;
}

/** Encodes a call's new snapshot for the step that writes it; a large input is told once, with `pending`. */
export function encodePart(sessionId: string, call: string, given: ToolPart): WrittenRedisPart {
  const part: ToolPart = { ...given, sessionId, permissionIds: [], revision: 0n, inputElided: false };
  const told = part.state.case === "pending" ? part : withoutLargeInput(part);
  const bytes: StepBytes = { [`told ${call}`]: encodeEvent(sessionId, { case: "part", value: told }) };
  if (told !== part) bytes[`whole ${call}`] = encodeWhole(part);
  return { part, bytes };
}

/** What is left of a call after a week. */
export function encodeTombstone(part: ToolPart): Uint8Array {
  return encodeWhole(tombstone(part));
}

function encodeWhole(part: ToolPart): Uint8Array {
  return encodeMessage(SessionEventSchema, create(SessionEventSchema, { event: { case: "part", value: part } }));
}
