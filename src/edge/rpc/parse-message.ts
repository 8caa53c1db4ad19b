import { type DescMessage, fromBinary, fromJsonString, type Message } from "@bufbuild/protobuf";
import { unreadableRequest } from "../api/request-failure.ts";
import type { JsonOptions } from "./wire.ts";

/** Parses a request message; refuses bytes that are not one. */
export function parseMessage(
  schema: DescMessage,
  bytes: Uint8Array,
  { isBinary, jsonOptions }: { isBinary: boolean; jsonOptions: JsonOptions },
): Message {
  try {
    return isBinary ? fromBinary(schema, bytes) : fromJsonString(schema, Buffer.from(bytes).toString(), jsonOptions);
  } catch (cause) {
    throw unreadableRequest(cause);
  }
}
