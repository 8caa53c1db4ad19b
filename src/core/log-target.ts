/** A place that log lines go to. It never blocks or throws: lines that it cannot take are dropped and counted. */
export interface LogTarget {
  write(line: string): void;
  /** Number of lines that were dropped since the start. */
  dropped(): number;
  /** Resolves when every line so far is written or dropped. */
  flush(): Promise<void>;
  /** Writes the queued lines at once; only for the end of the process. */
  flushNow(): void;
}

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
}): LogTarget {
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
    write(line) {
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
    dropped: () => dropped,
    flush: async () => draining,
    flushNow() {
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
