import { randomUUID } from "node:crypto";

/** Makes an id: the prefix, then the time (so that ids sort), then 122 random bits. */
export function newId(prefix: "ses" | "msg" | "prt" | "per" | "grt" | "call" | "out", now: number): string {
  return `${prefix}_${now.toString(36).padStart(9, "0")}${randomUUID().replaceAll("-", "")}`;
}
