import { isMessage, type Message } from "@bufbuild/protobuf";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { ToolPartSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { EncodedMessages } from "../../call/ports.ts";
import { encodeMessage, type KnownBytes } from "../../core/encode-message.ts";

/** Creates the lookup of binary forms: those that the store has, and events, each of which is encoded once for all its watchers. */
export function createKnownBytes({ bytesOf }: EncodedMessages): KnownBytes {
  const events = new WeakMap<Message, Uint8Array>();
  return (message) => {
    if (isMessage(message, ToolPartSchema)) return bytesOf(message);
    if (!isMessage(message, SessionEventSchema)) return undefined;
    const stored = bytesOf(message) ?? events.get(message);
    if (stored !== undefined) return stored;
    const encoded = encodeMessage(SessionEventSchema, message);
    events.set(message, encoded);
    return encoded;
  };
}
