/**
 * Time of the store as a replica knows it. That time is Redis' clock, without jumps: when the clock of a server jumps, the time
 * of the store goes on and is behind that clock from then on.
 */
export interface RedisClock {
  /** Ms by which the time of the store is behind the clock of each server. */
  readonly behind: Map<string, number>;
  /** Difference between the time of the store and `performance.now()`, in ms; undefined before the first measurement. */
  offsetMs: number | undefined;
  /** Time for which the machine had slept at the last measurement, in ms. */
  sleptMs: number;
  /** Number of times that another replica measured, as of the last measurement. */
  turns: number;
  /** Servers of which a jump was found before this replica started. */
  readonly confirmed: Set<string>;
  agreeing: Promise<void> | undefined;
}

/** Creates the clock of a connection; nothing is measured yet. */
export const createRedisClock = (): RedisClock => ({
  ...{ behind: new Map(), offsetMs: undefined, sleptMs: 0, turns: 0, confirmed: new Set(), agreeing: undefined },
});
