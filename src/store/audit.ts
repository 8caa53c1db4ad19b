import { hash } from "node:crypto";
import { create, fromBinary } from "@bufbuild/protobuf";
import {
  type AuditEntry,
  AuditEntrySchema,
  type DecisionRecord,
  DecisionRecordSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { encodeMessage } from "../core/encode-message.ts";

/** A record as a step writes it: its bytes, and their digest for the hash chain. */
export interface EncodedDecision {
  content: Uint8Array;
  sha256: string;
}

/** Encodes a record once, for storage and for its hash. */
export function encodeDecision(record: DecisionRecord): EncodedDecision {
  const content = encodeMessage(DecisionRecordSchema, record);
  return { content, sha256: hash("sha256", content, "hex") };
}

/** Computes the hash of a chain link, as the contract defines it; the Redis scripts compute the same. */
export function linkHash(previous: string, seq: number, time: number, sha256: string): string {
  return hash("sha1", [previous, seq, time, sha256].join("\n"), "hex");
}

/** Builds the contract's entry from a stored link. */
export function auditEntry(
  entry: Pick<AuditEntry, "time" | "rootSessionId" | "previous" | "hash" | "content"> & { seq: number },
): AuditEntry {
  const record = fromBinary(DecisionRecordSchema, entry.content);
  return create(AuditEntrySchema, { ...entry, seq: BigInt(entry.seq), record });
}
