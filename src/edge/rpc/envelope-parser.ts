import { envelopeBytes } from "./envelope.ts";

/** Splits the bytes of a stream into envelopes. */
export class EnvelopeParser {
  private rest: Buffer = Buffer.alloc(0);
  /** Memory in which `rest` lies. */
  private space: Buffer = this.rest;

  /** Number of bytes that are not part of a message that was taken. */
  get restBytes(): number {
    return this.rest.length;
  }

  /** Size that the next message announces; undefined if not even that has arrived. */
  get announcedBytes(): number | undefined {
    return this.rest.length < envelopeBytes ? undefined : this.rest.readUInt32BE(1);
  }

  /** Adds bytes. The capacity doubles, so that a message in many chunks is not copied for each of them. */
  push(chunk: Buffer): void {
    if (this.rest.length === 0) {
      this.rest = chunk;
      this.space = chunk;
      return;
    }
    const size = this.rest.length + chunk.length;
    let start = this.rest.byteOffset - this.space.byteOffset;
    if (start + size > this.space.length) {
      // Messages that were taken may be parts of the old memory.
      this.space = Buffer.allocUnsafeSlow(2 * size);
      this.space.set(this.rest);
      start = 0;
    }
    this.space.set(chunk, start + this.rest.length);
    this.rest = this.space.subarray(start, start + size);
  }

  /** Takes the next message; undefined while it has not arrived whole. */
  take(): { flags: number; message: Buffer } | undefined {
    const end = envelopeBytes + (this.announcedBytes ?? Number.POSITIVE_INFINITY);
    if (this.rest.length < end) return undefined;
    const [flags = 0] = this.rest;
    const message = this.rest.subarray(envelopeBytes, end);
    this.rest = this.rest.subarray(end);
    return { flags, message };
  }
}
