import { execFile } from "node:child_process";
import { closeSync, constants, openSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

/** The two file descriptors of a pipe. Both are the caller's to close. */
export interface Pipe {
  reader: number;
  writer: number;
}

/** A supply of pipes of the kernel. */
export interface Pipes {
  open(): Promise<Pipe>;
  /** Closes those that nobody has opened. */
  close(): Promise<void>;
}

const maxReady = 32;
const fewReady = 8;

/**
 * Makes pipes before they are needed: Node cannot, so `mkfifo` makes many at once. The "pipes" of Node are sockets, which a
 * command cannot open as /dev/stdout or /dev/stderr; and one pipe for both keeps their order.
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
      // Whoever finds none is told why there are none.
      if (ready.length < fewReady) make().catch(() => {});
      return pipe;
    }
  }

  return {
    async open() {
      const pipe = await take();
      try {
        // The reader first and without waiting: each end would wait for the other one.
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

/** Pipes without a name, each open for reading and writing. */
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
/** More than a pipe and its reader hold. */
const maxInFlight = 262_144;

/**
 * Passes on what comes out of a pipe, no faster than it is taken, and returns how much it was; what is passed is overwritten
 * afterwards. Once `ended` is aborted it passes on what is still in the pipe and closes it, also when somebody holds the other
 * end. The pipe is closed in any case.
 */
export function passOn(
  pipe: number,
  ended: AbortSignal,
  output: (chunk: Uint8Array) => Promise<void>,
): Promise<number> {
  let passed = 0;
  let passedSinceEnd = 0;
  let isWaiting = true;
  let timer: NodeJS.Timeout | undefined;

  const reader = new Socket({
    fd: pipe,
    readable: true,
    writable: false,
    // One buffer for all that comes: a new one for each piece would be garbage faster than it is collected.
    onread: {
      buffer: Buffer.allocUnsafe(pieceBytes),
      callback(length, buffer) {
        isWaiting = false;
        clearTimeout(timer);
        pass(buffer.subarray(0, length)).then(
          () => reader.resume(),
          (error: Error) => reader.destroy(error),
        );
        return false;
      },
    },
  });

  async function pass(chunk: Uint8Array): Promise<void> {
    await output(chunk);
    passed += chunk.length;
    if (ended.aborted) passedSinceEnd += chunk.length;
    if (passedSinceEnd > maxInFlight) reader.destroy();
    isWaiting = true;
    if (ended.aborted) limitWait();
  }

  function limitWait(): void {
    if (!isWaiting) return;
    const before = passed;
    const giveUp = () => {
      if (isWaiting && passed === before) reader.destroy();
    };
    // The immediate lets a busy event loop look into the pipe once more before it is closed.
    timer = setTimeout(() => setImmediate(giveUp), maxIdleMs);
  }

  const { promise, resolve, reject } = Promise.withResolvers<number>();
  reader.once("end", () => reader.destroy());
  reader.once("error", reject);
  reader.once("close", () => {
    clearTimeout(timer);
    ended.removeEventListener("abort", limitWait);
    resolve(passed);
  });
  ended.addEventListener("abort", limitWait, { once: true });
  if (ended.aborted) limitWait();
  return promise;
}
