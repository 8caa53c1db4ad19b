/** Bytes that wait to be stored. Two buffers take turns, however much is written: one is stored while the other fills. */
export interface Backlog {
  /** Bytes that wait. */
  readonly size: number;
  /** Copies a chunk to the end. */
  add(chunk: Uint8Array): void;
  /** Takes everything that waits; the bytes are valid until `release`. */
  take(): Buffer;
  /** Makes the buffer of what was taken last available again. */
  release(): void;
}

const empty = Buffer.alloc(0);

/** Creates an empty backlog. A buffer over `maxRetainedBytes` is dropped after use. */
export function createBacklog(maxRetainedBytes: number): Backlog {
  let filling = empty;
  let spare = empty;
  let taken = empty;
  let size = 0;
  return {
    get size() {
      return size;
    },
    add(chunk) {
      const wanted = size + chunk.length;
      if (wanted > filling.length) {
        const larger = Buffer.allocUnsafe(Math.max(wanted, Math.min(2 * filling.length, maxRetainedBytes)));
        filling.copy(larger, 0, 0, size);
        filling = larger;
      }
      filling.set(chunk, size);
      size = wanted;
    },
    take() {
      const data = filling.subarray(0, size);
      taken = filling;
      filling = spare;
      spare = empty;
      size = 0;
      return data;
    },
    release() {
      if (taken.length <= maxRetainedBytes) spare = taken;
      taken = empty;
    },
  };
}
