import type { AuditEntry, DecisionRecord } from "../../../gen/opencode/tool/v1/permission_pb.ts";

/** The audit of decisions. Each transition writes its decisions in the same step; what belongs to none has its own. */
export interface AuditLog {
  /** record_decisions: adds decisions to the audit of a tree; a root without a session has a chain, too. */
  recordDecisions(root: string, decisions: readonly DecisionRecord[]): Promise<void>;
  /** Lists the audit of a tree, oldest first. */
  listDecisions(page: { root: string; afterSeq: number; limit: number }): Promise<AuditEntry[]>;
  /** Lists the roots of removed trees whose audit is retained, newest first; `before` is the last one of the previous page. */
  listAudits(page: { before?: string; limit: number }): Promise<string[]>;
}
