import { cpuTime } from "./cpu-time.ts";

/** Makes the next call, with a text that no call before it had, and throws unless that text comes back. */
export type Echo = () => Promise<void>;

/** A server that runs, and a client that is connected to it. */
export interface Target {
  /** The processes whose CPU time a call costs. */
  readonly pids: readonly number[];
  readonly echo: Echo;
}

/** Rate and cost of a number of calls. */
export interface Sample {
  readonly calls: number;
  readonly callsPerSecond: number;
  /** µs of CPU time of the server and its children, per call. */
  readonly cpuPerCall: number;
}

/** The end of a measurement: after so many calls, or so many milliseconds. */
export type Extent = { readonly calls: number } | { readonly ms: number };

/** Calls with `width` calls open at a time; the first wrong answer ends it. */
export async function measure({ pids, echo }: Target, extent: Extent, width = 16): Promise<Sample> {
  const cpuBefore = cpuTimeOf(pids);
  const began = performance.now();
  let calls = 0;
  const isOpen = () => ("calls" in extent ? calls < extent.calls : performance.now() - began < extent.ms);
  const caller = async () => {
    while (isOpen()) {
      calls += 1;
      await echo();
    }
  };
  await Promise.all(Array.from({ length: width }, caller));
  const seconds = (performance.now() - began) / 1000;
  return { calls, callsPerSecond: calls / seconds, cpuPerCall: (cpuTimeOf(pids) - cpuBefore) / calls };
}

/** Returns the CPU time of processes and their children, in µs. */
export function cpuTimeOf(pids: readonly number[]): number {
  return pids.reduce((sum, pid) => sum + cpuTime(pid), 0);
}

/** Calls one after the other for so many milliseconds; resolves to the time of each, in ms. */
export async function timesOf(echo: Echo, ms: number): Promise<number[]> {
  const times: number[] = [];
  for (const began = performance.now(); performance.now() - began < ms; ) {
    const start = performance.now();
    await echo();
    times.push(performance.now() - start);
  }
  return times;
}
