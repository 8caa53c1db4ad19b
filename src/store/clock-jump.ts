import { uptime } from "node:os";
import { dayMs } from "./retention.ts";

/** The largest jump of a clock that a store takes over by itself: a long weekend without the service. Results are stored for longer. */
export const maxJumpMs = 3 * dayMs;
/** The smallest difference of two clocks that is a jump. */
export const minJumpMs = 5_000;

/** Describes a jump in a log line. */
export function jumpInWords(ms: number): string {
  const size = Math.abs(ms);
  const [count, unit] =
    size >= dayMs ? [size / dayMs, "days"] : size >= 60_000 ? [size / 60_000, "minutes"] : [size / 1_000, "seconds"];
  return `${ms < 0 ? "-" : ""}${count.toFixed(1)} ${unit}`;
}

/** Returns the time for which the machine slept so far, in ms: its uptime counts that, and the other clock does not. */
export const sleepOfMachine = (): number => uptime() * 1_000 - performance.now();
