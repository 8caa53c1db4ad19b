import { hash } from "node:crypto";
import { create, fromBinary } from "@bufbuild/protobuf";
import {
  type AuditEntry,
  AuditEntrySchema,
  type DecisionRecord,
  DecisionRecordSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { encodeMessage } from "../core/encode-message.ts";

/** A record as a step writes it down: its bytes, and the digest by which the chain holds them. */
export interface EncodedDecision {
  content: Uint8Array;
  sha256: string;
}

/** Encodes a record once, for the log of decisions and for its hash. */
export function encodeDecision(record: DecisionRecord): EncodedDecision {
  const content = encodeMessage(DecisionRecordSchema, record);
  return { content, sha256: hash("sha256", content, "hex") };
}

/** The hash of a link, as the contract defines it; Redis computes the same in its script. */
export function linkHash(previous: string, seq: number, time: number, sha256: string): string {
  return hash("sha1", [previous, seq, time, sha256].join("\n"), "hex");
}

/** An entry as it is told. */
export function auditEntry(
  entry: Pick<AuditEntry, "time" | "rootSessionId" | "previous" | "hash" | "content"> & { seq: number },
): AuditEntry {
  const record = fromBinary(DecisionRecordSchema, entry.content);
  return create(AuditEntrySchema, { ...entry, seq: BigInt(entry.seq), record });
}

/** How long the audit is kept: longer than anything else. */
export const auditKept = 90 * 86_400_000;
