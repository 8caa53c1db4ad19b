import { crc32 } from "node:zlib";
import { type DescMessage, fromBinary, type Message, type MessageShape } from "@bufbuild/protobuf";
import { encodeMessage } from "../../core/encode-message.ts";
import { DamagedRecord, unsealed } from "../checksum.ts";

/**
 * Encodes a message with its checksum behind it, as Redis stores it. The checksum has the form of a field that no message has, so
 * replicas of versions without checksums skip it.
 */
export function encodeSealed(schema: DescMessage, message: Message): Uint8Array {
  const content = encodeMessage(schema, message);
  const end = content.byteLength;
  const bytes = Buffer.allocUnsafe(end + sealBytes);
  bytes.set(content);
  bytes[end] = sealTag[0];
  bytes[end + 1] = sealTag[1];
  bytes.writeUInt32LE(crc32(content), end + sealTag.length);
  return bytes;
}

/** Decodes a stored message if it has its checksum; versions before checksums stored none. */
export function decodeSealed<Schema extends DescMessage>(
  schema: Schema,
  bytes: Uint8Array,
  what: string,
): MessageShape<Schema> {
  const content = contentOf(bytes, what);
  try {
    const message = fromBinary(schema, content);
    // The tag of the checksum may be what was damaged.
    if (content === bytes && message.$unknown !== undefined) throw new DamagedRecord(`${what} is not what was written`);
    return message;
  } catch (cause) {
    throw cause instanceof DamagedRecord ? cause : new DamagedRecord(`${what} cannot be decoded`, { cause });
  }
}

/** Returns a message without its checksum. */
function contentOf(bytes: Uint8Array, what: string): Uint8Array {
  const end = bytes.byteLength - sealBytes;
  if (end < 0 || bytes[end] !== sealTag[0] || bytes[end + 1] !== sealTag[1]) return bytes;
  const crc = Buffer.from(bytes.buffer, bytes.byteOffset + end, sealBytes).readUInt32LE(sealTag.length);
  return unsealed(bytes.subarray(0, end), crc, what);
}

/** Encodes a JSON object with its checksum as the last property, which versions without checksums ignore. */
export function encodeSealedJson(value: object): string {
  const json = JSON.stringify(value);
  return `${json.slice(0, -1)}${jsonSeal}${crc32(json)}}`;
}

/** Parses a stored JSON object if it has its checksum; versions before checksums stored none. */
export function decodeSealedJson(stored: string, what: string): unknown {
  const end = stored.lastIndexOf(jsonSeal);
  const crc = Number(stored.slice(end + jsonSeal.length, -1));
  const json = end < 0 || Number.isNaN(crc) ? stored : unsealed(`${stored.slice(0, end)}}`, crc, what);
  try {
    return JSON.parse(json);
  } catch (cause) {
    throw new DamagedRecord(`${what} cannot be decoded`, { cause });
  }
}

const jsonSeal = ',"crc":';

/** Tag of field 2047, the last one of two bytes, with four bytes as its value. */
const sealTag = [0xfd, 0x7f] as const;
/** Bytes that a checksum adds to a message. */
export const sealBytes = sealTag.length + 4;
