import type { AuditEntry } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Principal } from "../core/principal.ts";
import { noSuchSession } from "../core/request-error.ts";
import type { PermissionStore } from "./ports.ts";

/** Reads the audit: the decisions of a session tree, also of one that is gone. */
export type AuditReader = ReturnType<typeof createAuditReader>;

/**
 * Creates the reader of the audit. `readableRoot` is the access check: it returns the root of a session that the principal
 * may read, undefined for an unknown session if the principal may read all, and throws otherwise.
 */
export function createAuditReader({
  store,
  readableRoot,
}: {
  store: Pick<PermissionStore, "listDecisions" | "listAudits">;
  readableRoot(principal: Principal, sessionId: string): Promise<string | undefined>;
}) {
  return {
    /** The roots of trees that are gone, newest first. */
    gone: store.listAudits,
    /** The chain of the tree that holds a session, oldest first. */
    async list(
      principal: Principal,
      { sessionId, afterSeq, limit }: { sessionId: string; afterSeq: number; limit: number },
    ): Promise<AuditEntry[]> {
      const root = await readableRoot(principal, sessionId);
      // The audit outlives its sessions: an unknown ID may be the root of a tree that is gone.
      const entries = await store.listDecisions({ root: root ?? sessionId, afterSeq, limit });
      if (root !== undefined || entries.length > 0 || afterSeq > 0) return entries;
      throw noSuchSession(sessionId);
    },
  };
}
