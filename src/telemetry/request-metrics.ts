import { type Family, single } from "./families.ts";

/** Reads of the store for the metrics of open permission requests. */
export interface OpenRequestReader {
  /** Returns the number of open permission requests, and the time at which the oldest was opened. */
  countOpenAsks(): Promise<{ count: number; oldest?: number }>;
  /** Ms since the epoch, by the store's clock. */
  now(): number;
}

/** Returns the metrics of the open permission requests of the store; none while the store does not answer. */
export async function requestFamilies({ countOpenAsks, now }: OpenRequestReader): Promise<Family[]> {
  const found = await countOpenAsks().catch(() => undefined);
  if (found === undefined) return [];
  const age = found.oldest === undefined ? 0 : Math.max(0, now() - found.oldest) / 1_000;
  return [
    single(
      "toolgate_open_requests",
      "gauge",
      "Permission requests that wait for an answer, in the whole store: each replica reports the same.",
      found.count,
    ),
    single(
      "toolgate_oldest_request_age_seconds",
      "gauge",
      "Time since the oldest open permission request was opened; 0 if there is none.",
      age,
    ),
  ];
}
