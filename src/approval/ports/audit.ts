import type { AuditEntry } from "../../../gen/opencode/tool/v1/permission_pb.ts";

/** The audit of decisions. Each transition writes its decisions in the same step; this port only reads. */
export interface AuditLog {
  /** Lists the audit of a tree, oldest first. */
  listDecisions(page: { root: string; afterSeq: number; limit: number }): Promise<AuditEntry[]>;
  /** Lists the roots of removed trees whose audit is retained, newest first; `before` is the last one of the previous page. */
  listAudits(page: { before?: string; limit: number }): Promise<string[]>;
}
