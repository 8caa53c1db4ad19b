import type { AuditEntry } from "../../../gen/opencode/tool/v1/permission_pb.ts";

/** The state of the hash chain over the records that are loaded. */
export type Chain =
  | { readonly state: "whole"; readonly seq: bigint; readonly hash: string }
  | { readonly state: "broken"; readonly seq: bigint; readonly problem: string }
  /** Browsers compute hashes only for pages that come over HTTPS or from this machine. */
  | { readonly state: "unchecked" };

/** Verifies the hashes of records. The record before them is absent at the start of the chain, or if it has expired. */
export async function checkChain(entries: readonly AuditEntry[], before?: AuditEntry): Promise<Chain> {
  if (!("subtle" in crypto)) return { state: "unchecked" };
  let last = before;
  for (const entry of entries) {
    const problem = await problemOf(entry, last);
    if (problem !== undefined) return { state: "broken", seq: entry.seq, problem };
    last = entry;
  }
  return { state: "whole", seq: last?.seq ?? 0n, hash: last?.hash ?? "" };
}

async function problemOf(entry: AuditEntry, before: AuditEntry | undefined): Promise<string | undefined> {
  const { seq, time, previous, hash, content } = entry;
  if (before !== undefined && seq !== before.seq + 1n) return "the record before it is missing";
  if (before !== undefined && previous !== before.hash) return "it does not name the hash of the record before";
  if (before === undefined && seq === 1n && previous !== "") return "it is the first but names a record before";
  const link = [previous, seq, time, await hex("SHA-256", content)].join("\n");
  if ((await hex("SHA-1", new TextEncoder().encode(link))) !== hash) return "its content, number or time was changed";
  return undefined;
}

async function hex(algorithm: string, bytes: Uint8Array): Promise<string> {
  const digest = await crypto.subtle.digest(algorithm, new Uint8Array(bytes));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
