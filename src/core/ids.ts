import { randomUUID } from "node:crypto";

/** Creates an ID: the prefix, then the time (so that IDs sort), then 122 random bits. */
export function newId(prefix: "ses" | "msg" | "prt" | "per" | "grt" | "call" | "out" | "run", now: number): string {
  return `${prefix}_${now.toString(36).padStart(9, "0")}${randomUUID().replaceAll("-", "")}`;
}
