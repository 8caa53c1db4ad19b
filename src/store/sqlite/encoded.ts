import { create, type Message, toBinary } from "@bufbuild/protobuf";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { type ToolPart, ToolPartSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";

/** The binary form of events and parts, which do not change once they are written. */
export interface Encoded {
  /** Encodes an event; a part that it tells of is encoded once for both. */
  event(event: SessionEvent): Uint8Array;
  /** The bytes of a message that was encoded here, as long as somebody has the message. */
  of(message: Message): Uint8Array | undefined;
}

export function createEncoded(): Encoded {
  const known = new WeakMap<Message, Uint8Array>();
  // It keeps its room from one message to the next.
  const writer = new BinaryWriter();

  function keep(message: Message, bytes: Uint8Array): Uint8Array {
    known.set(message, bytes);
    return bytes;
  }

  function part(part: ToolPart): Uint8Array {
    return known.get(part) ?? keep(part, toBinary(ToolPartSchema, part));
  }

  return {
    of: (message) => known.get(message),
    event(event) {
      if (event.event.case !== "part") return keep(event, toBinary(SessionEventSchema, event));
      const { seq, time, sessionId } = event;
      const names = toBinary(SessionEventSchema, create(SessionEventSchema, { seq, time, sessionId }));
      const { number } = SessionEventSchema.field.part;
      return keep(
        event,
        writer.raw(names).tag(number, WireType.LengthDelimited).bytes(part(event.event.value)).finish(),
      );
    },
  };
}
