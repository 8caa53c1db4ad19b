import { randomUUID } from "node:crypto";

/** Root of the audit of the service itself. */
export const serviceRoot = "ses_toolgate";

/** Creates an ID: the prefix, then the time (so that IDs sort), then 122 random bits. */
export function newId(prefix: "ses" | "msg" | "prt" | "per" | "grt" | "call" | "out", now: number): string {
  return `${prefix}_${now.toString(36).padStart(9, "0")}${randomUUID().replaceAll("-", "")}`;
}

/** Returns the time at which an ID was created, in ms since the epoch; 0 for one that `newId` did not create. */
export function timeOfId(id: string): number {
  const [, time = ""] = /^[a-z]+_([0-9a-z]{9})[0-9a-f]{32}$/.exec(id) ?? [];
  return time === "" ? 0 : Number.parseInt(time, 36);
}
