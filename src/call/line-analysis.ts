import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { assets } from "../core/assets.ts";
import { setNewest } from "../core/bounded-map.ts";
import type { Logger } from "../core/logger.ts";
import { RequestError } from "../core/request-error.ts";
import { isSimpleLine, type LineReading, type Readings, unreadLine } from "../policy/shell/command.ts";

/** Reads command lines in a thread, so that a hostile one delays no other caller. */
export type LineAnalysis = ReturnType<typeof createLineAnalysis>;

/** Limits of the analysis. */
export interface AnalysisLimits {
  /** Processor time for one line. */
  lineMs: number;
  /** Time for the lines (of the processor) and the rules of one principal in each window. */
  budgetMs: number;
  windowMs: number;
}

/** A call with common rules takes less. */
const freeMs = 5;

const defaults: AnalysisLimits = { lineMs: 200, budgetMs: 2_000, windowMs: 10_000 };

const maxKnown = 256;

/** Maximum time by the clock for a thread that gets no time of a processor. */
const maxWaitMs = 10_000;

/** Creates the analysis of a replica, whose thread starts with the first line that needs it. */
export function createLineAnalysis({
  log,
  limits = defaults,
  now = () => performance.now(),
  entry = assets.analysisWorker,
}: {
  log: Pick<Logger, "warn">;
  limits?: AnalysisLimits;
  now?: () => number;
  entry?: URL;
}) {
  const budget = createTimeBudget(limits.windowMs, now);
  const thread = createThread(entry);
  /** The latest lines that were read to their end. The meaning of a line does not depend on its sender. */
  const known = new Map<string, Readings>();

  /** The last line of each principal. One of each waits for the thread, so that many of one delay no other. */
  const turns = new Map<string, Promise<Readings>>();

  async function readLine(principal: string, line: string): Promise<Readings> {
    const before = known.get(line);
    if (before) return before;
    const turn = (turns.get(principal) ?? Promise.resolve()).then(
      () => readNext(principal, line),
      () => readNext(principal, line),
    );
    turns.set(principal, turn);
    try {
      return await turn;
    } finally {
      if (turns.get(principal) === turn) turns.delete(principal);
    }
  }

  async function readNext(principal: string, line: string): Promise<Readings> {
    const before = known.get(line);
    if (before) return before;
    if (budget.usedBy(principal) >= limits.budgetMs)
      return unreadLine(line, `${principal} has used up its time for analysis`);
    const { readings, ms } = await thread.run(line, limits.lineMs);
    budget.spend(principal, ms);
    if (readings) {
      setNewest(known, line, readings, maxKnown);
      return readings;
    }
    log.warn("the analysis of a command line was stopped, so the line asks", { principal, duration: Math.round(ms) });
    return unreadLine(line, `its analysis takes longer than ${limits.lineMs} ms`);
  }

  return {
    /**
     * Reads lines for a principal, and their longer commands by themselves. A line that takes too long counts as not understood.
     * Short lines without anything that nests are left to the policy.
     */
    async read(principal: string, lines: readonly string[]): Promise<Readings> {
      const all = new Map<string, LineReading>();
      for (const line of new Set(lines)) {
        if (isSimpleLine(line)) continue;
        for (const [text, reading] of await readLine(principal, line)) all.set(text, reading);
      }
      return all;
    },
    /** Counts the time of other work for a principal, such as matching its rules; what is usual for a call is free. */
    charge(principal: string, ms: number): void {
      if (ms >= freeMs) budget.spend(principal, ms);
    },
    /** Refuses a principal that has used up its time. */
    checkBudget(principal: string): void {
      if (budget.usedBy(principal) < limits.budgetMs) return;
      throw new RequestError(
        ErrorReason.QUOTA_EXCEEDED,
        `${principal} used ${limits.budgetMs} ms of analysis within ${limits.windowMs / 1_000} s; wait, or send simpler command lines and fewer rules`,
        { limit: "analysis_ms" },
      );
    },
    /** Ends the thread; a line that is read afterwards starts another one. */
    close: thread.end,
  };
}

/** Creates the count of the time that principals have used within the last `windowMs`. */
export function createTimeBudget(windowMs: number, now: () => number) {
  const spent = new Map<string, { at: number; ms: number }[]>();
  return {
    usedBy(principal: string): number {
      const recent = (spent.get(principal) ?? []).filter(({ at }) => at > now() - windowMs);
      if (recent.length === 0) spent.delete(principal);
      else spent.set(principal, recent);
      return recent.reduce((sum, { ms }) => sum + ms, 0);
    },
    spend(principal: string, ms: number): void {
      spent.set(principal, [...(spent.get(principal) ?? []), { at: now(), ms }]);
    },
  };
}

/** Answer of the thread to a line. */
export interface AnalysisAnswer {
  readings: Readings;
  /** Processor time that it took. */
  ms: number;
}

/** Creates a thread that reads one line at a time. */
function createThread(entry: URL) {
  let worker: Worker | undefined;
  let last: Promise<unknown> = Promise.resolve();

  async function ready(): Promise<Worker> {
    if (worker) return worker;
    const started = new Worker(entry, { env: {}, execArgv: [], resourceLimits: { maxOldGenerationSizeMb: 128 } });
    // It must not keep the process alive, nor end it when it fails.
    started
      .on("error", () => {})
      .once("exit", () => {
        if (worker === started) worker = undefined;
      });
    await once(started, "message");
    started.unref();
    worker = started;
    return started;
  }

  async function readIn(line: string, maxMs: number): Promise<{ readings?: Readings; ms: number }> {
    const thread = await ready();
    const stopped = new AbortController();
    const stop = () => stopped.abort();
    thread.once("exit", stop);
    thread.ref();
    thread.postMessage(line);
    void stopAfter(thread, maxMs, stopped);
    try {
      const [answer] = await once(thread, "message", { signal: stopped.signal });
      return answer as AnalysisAnswer;
    } catch {
      worker = undefined;
      await thread.terminate();
      return { ms: maxMs };
    } finally {
      thread.off("exit", stop);
      thread.unref();
      stop();
    }
  }

  return {
    run(line: string, maxMs: number) {
      const result = last.then(() => readIn(line, maxMs));
      last = result.catch(() => {});
      return result;
    },
    async end(): Promise<void> {
      await worker?.terminate();
    },
  };
}

/**
 * Stops the reading of a line when the thread has worked on it for `maxMs`, which takes longer by the clock on a busy
 * machine, or does not answer at all.
 */
async function stopAfter(thread: Worker, maxMs: number, stopped: AbortController): Promise<void> {
  const { signal } = stopped;
  const late = setTimeout(() => stopped.abort(), maxWaitMs);
  try {
    const before = await thread.cpuUsage();
    for (let leftMs = maxMs; leftMs > 0; ) {
      await sleep(Math.ceil(leftMs), undefined, { signal });
      const { user, system } = await thread.cpuUsage(before);
      leftMs = maxMs - (user + system) / 1_000;
    }
  } catch {
    // The line has been read, or the thread has ended.
  } finally {
    clearTimeout(late);
    stopped.abort();
  }
}
