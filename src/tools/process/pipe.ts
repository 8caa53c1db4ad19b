import { execFile } from "node:child_process";
import { closeSync, constants, openSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

/** The two file descriptors of a pipe; the caller closes both. */
export interface Pipe {
  reader: number;
  writer: number;
}

/** A pool of kernel pipes. */
export interface Pipes {
  open(): Promise<Pipe>;
  /** Closes the pipes that were not opened. */
  close(): Promise<void>;
}

const maxReady = 32;
const fewReady = 8;

/**
 * Creates a pool of pipes, filled before they are needed: Node cannot make pipes, so `mkfifo` makes many at once. The "pipes" of
 * Node are sockets, which a command cannot open as /dev/stdout or /dev/stderr. One pipe for both preserves their order.
 */
export function createPipes(): Pipes {
  const ready: number[] = [];
  let making: Promise<void> | undefined;

  function make(): Promise<void> {
    making ??= makePipes(maxReady)
      .then((made) => void ready.push(...made))
      .finally(() => {
        making = undefined;
      });
    return making;
  }

  async function take(): Promise<number> {
    for (;;) {
      const pipe = ready.pop();
      if (pipe === undefined) {
        await make();
        continue;
      }
      // A failure surfaces when the pool is empty.
      if (ready.length < fewReady) make().catch(() => {});
      return pipe;
    }
  }

  return {
    async open() {
      const pipe = await take();
      try {
        // The reader first and non-blocking: otherwise each end would wait for the other.
        const reader = openSync(`/proc/self/fd/${pipe}`, constants.O_RDONLY | constants.O_NONBLOCK);
        const writer = openSync(`/proc/self/fd/${pipe}`, constants.O_WRONLY);
        return { reader, writer };
      } finally {
        closeSync(pipe);
      }
    },
    async close() {
      await making?.catch(() => {});
      for (const pipe of ready.splice(0)) closeSync(pipe);
    },
  };
}

/** Makes unnamed pipes, each open for reading and writing. */
async function makePipes(count: number): Promise<number[]> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-"));
  try {
    const paths = Array.from({ length: count }, (_, index) => join(directory, String(index)));
    await promisify(execFile)("mkfifo", ["-m", "600", ...paths]);
    return paths.map((path) => openSync(path, constants.O_RDWR | constants.O_NONBLOCK));
  } finally {
    await rm(directory, { recursive: true });
  }
}

const maxIdleMs = 100;
const pieceBytes = 65_536;
/** More than the capacity of a pipe and its reader. */
const maxInFlight = 262_144;

/**
 * Forwards the output of a pipe with backpressure and returns its byte count; chunks are overwritten afterwards. Once `ended` is
 * aborted it forwards what is left in the pipe and closes it, even if another process holds the other end. It always closes the
 * pipe.
 */
export function forwardOutput(
  pipe: number,
  ended: AbortSignal,
  output: (chunk: Uint8Array) => Promise<void>,
): Promise<number> {
  let forwardedBytes = 0;
  let bytesSinceEnd = 0;
  let isIdle = true;
  let timer: NodeJS.Timeout | undefined;

  const reader = new Socket({
    fd: pipe,
    readable: true,
    writable: false,
    // One buffer for all chunks: new ones would become garbage faster than they are collected.
    onread: {
      buffer: Buffer.allocUnsafe(pieceBytes),
      callback(length, buffer) {
        isIdle = false;
        clearTimeout(timer);
        forward(buffer.subarray(0, length)).then(
          () => reader.resume(),
          (error: Error) => reader.destroy(error),
        );
        return false;
      },
    },
  });

  async function forward(chunk: Uint8Array): Promise<void> {
    await output(chunk);
    forwardedBytes += chunk.length;
    if (ended.aborted) bytesSinceEnd += chunk.length;
    if (bytesSinceEnd > maxInFlight) reader.destroy();
    isIdle = true;
    if (ended.aborted) limitIdleTime();
  }

  function limitIdleTime(): void {
    if (!isIdle) return;
    const before = forwardedBytes;
    const closeIfIdle = () => {
      if (isIdle && forwardedBytes === before) reader.destroy();
    };
    // The immediate lets a busy event loop read the pipe once more before it is closed.
    timer = setTimeout(() => setImmediate(closeIfIdle), maxIdleMs);
  }

  const { promise, resolve, reject } = Promise.withResolvers<number>();
  reader.once("end", () => reader.destroy());
  reader.once("error", reject);
  reader.once("close", () => {
    clearTimeout(timer);
    ended.removeEventListener("abort", limitIdleTime);
    resolve(forwardedBytes);
  });
  ended.addEventListener("abort", limitIdleTime, { once: true });
  if (ended.aborted) limitIdleTime();
  return promise;
}
