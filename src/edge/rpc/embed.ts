import { type DescField, type DescMessage, type Message, toBinary } from "@bufbuild/protobuf";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import type { HandlerContext } from "@connectrpc/connect";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { type ToolPart, ToolPartSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallStore } from "../../call/ports.ts";

type Context = Pick<HandlerContext, "requestHeader">;
type Field = Pick<DescField, "number">;

/** For clients that take binary a message goes in as the bytes it has, for others as what it is. */
export function createEmbed({ bytesOf }: Pick<CallStore, "bytesOf">) {
  // Made once for all who are sent the same message: its length and its bytes.
  const made = new WeakMap<Message, Uint8Array>();

  /** What an answer holds beside its known fields is sent as it is; under a known field's number it is that field. */
  function inBytes({ number: no }: Field, schema: DescMessage, message: SessionEvent | ToolPart) {
    let data = made.get(message);
    if (data === undefined) {
      data = new BinaryWriter().bytes(bytesOf(message) ?? toBinary(schema, message)).finish();
      made.set(message, data);
    }
    return [{ no, wireType: WireType.LengthDelimited, data }];
  }

  return {
    /** Sets the part of an answer, which is in this field. */
    part<Answer extends Message & { part?: ToolPart | undefined }>(
      ctx: Context,
      answer: Answer,
      field: Field,
      part: ToolPart,
    ) {
      if (takesJson(ctx)) answer.part = part;
      else answer.$unknown = inBytes(field, ToolPartSchema, part);
      return answer;
    },
    /** Sets the event of an answer, which is in this field, if there is one. */
    event<Answer extends Message & { event?: SessionEvent | undefined }>(
      ctx: Context,
      answer: Answer,
      field: Field,
      event: SessionEvent | undefined,
    ) {
      if (event === undefined) return answer;
      if (takesJson(ctx)) answer.event = event;
      else answer.$unknown = inBytes(field, SessionEventSchema, event);
      return answer;
    },
  };
}

/** Clients are answered in the form in which they ask. */
function takesJson({ requestHeader }: Context): boolean {
  return requestHeader.get("content-type")?.includes("json") ?? false;
}
