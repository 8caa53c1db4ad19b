import { close, fchmod, fstat, open, write, writeSync } from "node:fs";
import { mkdir, rename } from "node:fs/promises";
import { dirname } from "node:path";
import { promisify } from "node:util";

/** Limits of a log file. */
export interface LogRotation {
  /** Size at which the file is rotated. */
  maxBytes: number;
  /** Age at which the file is rotated. */
  maxAgeMs: number;
  /** Number of rotated files that are retained, `FILE.1` being the latest. */
  maxFiles: number;
}

/** A log file that only its owner can read. */
export interface LogFile extends LogSink {
  /** Opens the path again before the next write, for example after another program renamed the file. */
  reopen(): void;
}

/** Creates a log file, opened at the first write. */
export function createLogFile(
  path: string,
  { maxBytes, maxAgeMs, maxFiles }: LogRotation = { maxBytes: Infinity, maxAgeMs: Infinity, maxFiles: 0 },
  now: () => number = Date.now,
): LogFile {
  let file: OpenedLog | undefined;
  let isStale = false;

  async function current(bytes: number): Promise<OpenedLog> {
    if (isStale) await closeCurrent();
    file ??= await openLog(path, now());
    const isFull = file.size + bytes > maxBytes || now() - file.since >= maxAgeMs;
    if (!isFull || file.size === 0) return file;
    await closeCurrent();
    await shift(path, maxFiles);
    file = await openLog(path, now());
    return file;
  }

  async function closeCurrent(): Promise<void> {
    isStale = false;
    const closing = file;
    file = undefined;
    if (closing !== undefined) await closeFile(closing.fd).catch(() => {});
  }

  return {
    async send(text) {
      const bytes = Buffer.from(text);
      const log = await current(bytes.byteLength);
      await append(log, log.isTorn ? Buffer.concat([newline, bytes]) : bytes);
    },
    sendNow(text) {
      if (file === undefined) throw new Error(`the log file ${path} is not open`);
      writeSync(file.fd, text);
    },
    reopen() {
      isStale = true;
    },
  };
}

interface OpenedLog {
  fd: number;
  size: number;
  /** Time of its creation, in ms since the epoch. */
  since: number;
  /** True if the last write ended within a line. */
  isTorn: boolean;
}

// Descriptors, not handles: a handle whose logger is collected would warn or throw.
const [openFile, closeFile, chmodFile, statFile, writeFile] = [
  promisify(open),
  promisify(close),
  promisify(fchmod),
  promisify(fstat),
  promisify(write),
];

const newline = Buffer.from("\n");

async function openLog(path: string, now: number): Promise<OpenedLog> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  const fd = await openFile(path, "a", 0o600);
  try {
    // The file may exist already, with other permissions.
    await chmodFile(fd, 0o600);
    const { size, birthtimeMs } = await statFile(fd);
    return { fd, size, since: size === 0 ? now : birthtimeMs || now, isTorn: false };
  } catch (error) {
    await closeFile(fd);
    throw error;
  }
}

/** Writes all bytes, or throws; records how far a failed write came. */
async function append(log: OpenedLog, bytes: Buffer): Promise<void> {
  for (let written = 0; written < bytes.byteLength; ) {
    const { bytesWritten } = await writeFile(log.fd, bytes, written);
    written += bytesWritten;
    log.size += bytesWritten;
    if (bytesWritten > 0) log.isTorn = written < bytes.byteLength && bytes[written - 1] !== newline[0];
  }
}

/** Renames the file to FILE.1, FILE.1 to FILE.2 and so on; the oldest one is replaced. */
async function shift(path: string, maxFiles: number): Promise<void> {
  const names = [path, ...Array.from({ length: maxFiles }, (_, index) => `${path}.${index + 1}`)];
  for (let index = maxFiles; index > 0; index--) {
    const [from = path, to = path] = [names[index - 1], names[index]];
    await rename(from, to).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "ENOENT") throw error;
    });
  }
}

/** A place that log lines go to. It never blocks or throws: lines that it cannot take are dropped and counted. */
export type LogTarget = ReturnType<typeof createLogTarget>;

/** Writes text to a file or a stream. */
export interface LogSink {
  /** Resolves when all of the text is written. Never called twice at a time. */
  send(text: string): Promise<void>;
  /** Writes what it can without waiting; may throw. */
  sendNow(text: string): void;
}

/** Creates a bounded queue in front of a sink. After a failed write it pauses, longer after each further failure. */
export function createLogTarget({
  sink,
  maxQueuedBytes = 1024 * 1024,
  onFailure,
  onDropped,
}: {
  sink: LogSink;
  maxQueuedBytes?: number;
  /** Called for the first of consecutive failures. */
  onFailure?: (error: unknown) => void;
  /** Called after lines were dropped, once the target has written all queued lines. */
  onDropped?: (count: number) => void;
}) {
  let queue: string[] = [];
  let queuedBytes = 0;
  let dropped = 0;
  let reported = 0;
  let failures = 0;
  let draining: Promise<void> | undefined;

  function take(): string[] {
    const lines = queue;
    queue = [];
    queuedBytes = 0;
    return lines;
  }

  async function drain(): Promise<void> {
    // Lines of one turn of the event loop are written together.
    await new Promise((resolve) => setImmediate(resolve));
    while (queue.length > 0) {
      const lines = take();
      try {
        await sink.send(lines.join(""));
        failures = 0;
        if (queue.length === 0) reportDropped();
      } catch (error) {
        dropped += lines.length;
        if (failures++ === 0) onFailure?.(error);
        await pause(Math.min(maxPauseMs, 100 * 2 ** failures));
      }
    }
  }

  function reportDropped(): void {
    const count = dropped - reported;
    reported = dropped;
    if (count > 0) onDropped?.(count);
  }

  return {
    write(line: string): void {
      if (queuedBytes + line.length > maxQueuedBytes) {
        dropped += 1;
        return;
      }
      queue.push(line);
      queuedBytes += line.length;
      draining ??= drain().finally(() => {
        draining = undefined;
      });
    },
    /** Number of lines that were dropped since the start. */
    dropped: (): number => dropped,
    /** Resolves when every line so far is written or dropped. */
    flush: async (): Promise<void> => draining,
    /** Writes the queued lines at once; only for the end of the process. */
    flushNow(): void {
      const lines = take();
      if (lines.length === 0) return;
      try {
        sink.sendNow(lines.join(""));
      } catch {
        dropped += lines.length;
      }
    },
  };
}

const maxPauseMs = 30_000;

/** Waits without keeping the process alive. */
const pause = (ms: number) => new Promise<void>((resolve) => void setTimeout(resolve, ms).unref());
