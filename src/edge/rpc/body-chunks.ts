import { bodyTimedOut } from "../api/request-failure.ts";
import type { Request } from "../http/handler.ts";

/**
 * Chunks of the body of a request, each read when it is asked for. While none is asked for, the client can send only what the
 * windows of HTTP/2 hold, and no more is in memory.
 */
export class BodyChunks {
  private readonly request: Request;
  private readonly signal: AbortSignal;
  private wake: () => void = () => undefined;
  private readonly onNews = () => this.wake();
  private hasStopped = false;

  /** Creates the chunks of a request that is abandoned when the signal is aborted. */
  constructor(request: Request, signal: AbortSignal) {
    this.request = request;
    this.signal = signal;
    request.on("readable", this.onNews).on("end", this.onNews).on("error", this.onNews);
    signal.addEventListener("abort", this.onNews);
  }

  /** True if the rest is discarded. */
  get isClosed(): boolean {
    return this.hasStopped;
  }

  /** Returns the next chunk; undefined at the end, or once they are closed. Throws the reason of an abort, and BODY_TIMEOUT after `untilMs`. */
  async next(untilMs: number | undefined, maxMs: number): Promise<Buffer | undefined> {
    for (;;) {
      if (this.hasStopped) return undefined;
      this.signal.throwIfAborted();
      const chunk: Buffer | null = this.request.read();
      if (chunk !== null) return chunk;
      if (this.request.readableEnded) return undefined;
      if (untilMs !== undefined && performance.now() >= untilMs) throw bodyTimedOut(maxMs);
      await this.news(untilMs);
    }
  }

  private news(untilMs: number | undefined): Promise<void> {
    return new Promise((resolve) => {
      const timer = untilMs === undefined ? undefined : setTimeout(resolve, Math.ceil(untilMs - performance.now()));
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Stops reading; the connection discards the rest. */
  close(): void {
    this.hasStopped = true;
    this.request.off("readable", this.onNews).off("end", this.onNews).off("error", this.onNews);
    this.signal.removeEventListener("abort", this.onNews);
    this.wake();
  }
}
