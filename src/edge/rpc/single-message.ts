import { compressedFlag } from "@connectrpc/connect/protocol";
import { notOneMessage } from "../api/request-failure.ts";
import { envelopeBytes } from "./envelope.ts";

/** Returns the size of the message that the first chunk of a body announces. */
export function announcedBytes(begin: Buffer): number {
  return begin.length < envelopeBytes ? 0 : begin.readUInt32BE(1);
}

/** Returns the message of a body, which must hold exactly one; compressed only if the headers name an encoding. */
export function singleMessage(body: Buffer, hasEncoding: boolean): { message: Buffer; isCompressed: boolean } {
  const [flags = 0] = body;
  if (body.length === 0) throw notOneMessage("unimplemented", "it has none");
  const length = body.length < envelopeBytes ? Number.POSITIVE_INFINITY : body.readUInt32BE(1);
  if (body.length < envelopeBytes + length) throw notOneMessage("invalid_argument", "it ends in the middle of one");
  if (body.length > envelopeBytes + length) throw notOneMessage("unimplemented", "it has more than one");
  if ((flags & ~compressedFlag) !== 0) throw notOneMessage("invalid_argument", `it has the unknown flags ${flags}`);
  const isCompressed = flags === compressedFlag;
  if (isCompressed && !hasEncoding) throw notOneMessage("internal", "it is compressed, and no header says how");
  return { message: body.subarray(envelopeBytes), isCompressed };
}
