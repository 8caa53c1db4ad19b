import { overloaded } from "../api/request-failure.ts";

/** Budget of the bytes that all requests and responses together have in memory. */
export interface ByteBudget {
  /** Bytes that are reserved now. */
  readonly usedBytes: number;
  /** Takes bytes from the budget; throws OVERLOADED, and takes none, if they do not fit. */
  reserve(bytes: number): void;
  /** Returns bytes to the budget. */
  release(bytes: number): void;
}

/** Creates the budget. */
export function createByteBudget(maxBytes: number): ByteBudget {
  let usedBytes = 0;
  return {
    get usedBytes() {
      return usedBytes;
    },
    reserve(bytes) {
      if (usedBytes + bytes > maxBytes) throw overloaded("buffered_bytes", `requests hold ${maxBytes} bytes of memory`);
      usedBytes += bytes;
    },
    release(bytes) {
      usedBytes -= bytes;
    },
  };
}
