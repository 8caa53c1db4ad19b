import { crc32 } from "node:zlib";

/** A record on which its checksum was not found: something else changed it. */
export class DamagedRecord extends Error {
  override name = "DamagedRecord";
}

/** Returns a content with its checksum, as two columns store them. */
export function sealed<Content extends Uint8Array | string>(content: Content): [content: Content, crc: number] {
  return [content, crc32(content)];
}

/** Returns a content if it has its checksum; null is that of a record that an earlier version wrote. */
export function unsealed<Content extends Uint8Array | string>(
  content: Content,
  crc: number | null,
  what: string,
): Content {
  if (crc === null || crc32(content) === crc) return content;
  throw new DamagedRecord(`${what} is not what was written`);
}
