import { Buffer } from "node:buffer";

/**
 * Buffer that a message is encoded into. One is reused for all messages: starting small and doubling for each message takes
 * longer than the encoding itself.
 */
export class MessageBuffer {
  private bytes = Buffer.allocUnsafeSlow(startBytes);
  private end = 0;

  /** Writes an unsigned integer of up to 53 bits as a varint. */
  varint(value: number): void {
    this.reserve(maxVarintBytes);
    let rest = value;
    while (rest > 0x7f) {
      this.bytes[this.end++] = (rest % 0x80) | 0x80;
      rest = Math.floor(rest / 0x80);
    }
    this.bytes[this.end++] = rest;
  }

  /** Writes an unsigned integer of up to 64 bits as a varint. */
  varint64(value: bigint): void {
    this.reserve(maxVarintBytes);
    let rest = value;
    while (rest > maxSafe) {
      this.bytes[this.end++] = Number(rest & 0x7fn) | 0x80;
      rest >>= 7n;
    }
    this.varint(Number(rest));
  }

  /** Writes a 64-bit floating point number. */
  double(value: number): void {
    this.reserve(8);
    this.end = this.bytes.writeDoubleLE(value, this.end);
  }

  /** Writes bytes as they are. */
  raw(chunk: Uint8Array): void {
    this.reserve(chunk.byteLength);
    this.bytes.set(chunk, this.end);
    this.end += chunk.byteLength;
  }

  /** Writes a text in UTF-8, after its length. */
  text(value: string): void {
    const { length } = value;
    // A UTF-16 unit takes at most three bytes.
    this.reserve(3 * length + maxVarintBytes);
    if (length < shortText && this.shortAscii(value)) return;
    const start = this.open();
    this.end += this.bytes.write(value, this.end);
    this.close(start);
  }

  /** Begins what has its length in front: `close` fills the length in. */
  open(): number {
    this.reserve(1);
    return this.end++;
  }

  /** Ends what `open` began at `start`. One byte was left for the length; a longer one moves the content. */
  close(start: number): void {
    const length = this.end - start - 1;
    const more = varintBytes(length) - 1;
    if (more > 0) {
      this.reserve(more);
      this.bytes.copyWithin(start + 1 + more, start + 1, this.end);
    }
    this.end = start;
    this.varint(length);
    this.end += length;
  }

  /** Returns a copy of what was written. */
  copy(): Uint8Array {
    return new Uint8Array(this.bytes.subarray(0, this.end));
  }

  /** Empties the buffer for the next message; one that has grown large is replaced. */
  clear(): void {
    this.end = 0;
    if (this.bytes.byteLength > maxReusedBytes) this.bytes = Buffer.allocUnsafeSlow(startBytes);
  }

  /** Writes a short text if it is ASCII, which most names and ids are; returns false and writes nothing if not. */
  private shortAscii(value: string): boolean {
    const { bytes } = this;
    let at = this.end;
    bytes[at++] = value.length;
    for (let i = 0; i < value.length; i++) {
      const code = value.charCodeAt(i);
      if (code > 0x7f) return false;
      bytes[at++] = code;
    }
    this.end = at;
    return true;
  }

  private reserve(size: number): void {
    const needed = this.end + size;
    if (needed <= this.bytes.byteLength) return;
    const larger = Buffer.allocUnsafeSlow(Math.max(needed, 2 * this.bytes.byteLength));
    larger.set(this.bytes.subarray(0, this.end));
    this.bytes = larger;
  }
}

function varintBytes(value: number): number {
  let size = 1;
  for (let rest = value; rest > 0x7f; rest = Math.floor(rest / 0x80)) size += 1;
  return size;
}

const startBytes = 65_536;
const maxReusedBytes = 1_048_576;
const maxVarintBytes = 10;
const shortText = 64;
const maxSafe = BigInt(Number.MAX_SAFE_INTEGER);
