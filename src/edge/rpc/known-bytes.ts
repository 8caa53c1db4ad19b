import { type DescMessage, isMessage, type Message } from "@bufbuild/protobuf";
import { HealthCheckResponseSchema } from "../../../gen/grpc/health/v1/health_pb.ts";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { ToolPartSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { EncodedMessages } from "../../call/ports.ts";
import { encodeMessage, type KnownBytes } from "../../core/encode-message.ts";

/**
 * Creates the lookup of binary forms: those that the store has; events, each of which is encoded once for all its watchers; and
 * the states of health, each of which is one message.
 */
export function createKnownBytes({ bytesOf }: EncodedMessages): KnownBytes {
  const encoded = new WeakMap<Message, Uint8Array>();
  const encodeOnce = (schema: DescMessage, message: Message): Uint8Array => {
    const bytes = encoded.get(message) ?? encodeMessage(schema, message);
    encoded.set(message, bytes);
    return bytes;
  };
  return (message) => {
    if (isMessage(message, ToolPartSchema)) return bytesOf(message);
    if (isMessage(message, HealthCheckResponseSchema)) return encodeOnce(HealthCheckResponseSchema, message);
    if (!isMessage(message, SessionEventSchema)) return undefined;
    return bytesOf(message) ?? encodeOnce(SessionEventSchema, message);
  };
}
