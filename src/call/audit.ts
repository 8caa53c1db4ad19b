import type { AuditEntry } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionStore } from "../approval/ports.ts";
import type { Principal } from "../core/principal.ts";
import { noSuchSession } from "../core/request-error.ts";
import type { CallStore } from "./ports.ts";
import { mayAccess, readsAll } from "./sessions.ts";

/** Reads what was decided. */
export type AuditReader = ReturnType<typeof createAuditReader>;

/** Makes the reader of the audit. It outlives sessions: who reads all of them may name a root that is gone. */
export function createAuditReader({
  calls,
  permissions,
}: {
  calls: Pick<CallStore, "getSession">;
  permissions: Pick<PermissionStore, "listDecisions" | "listAudits">;
}) {
  return {
    /** The roots of trees that are gone, newest first. */
    gone: permissions.listAudits,
    /** The chain of the tree that a session is in, oldest first. */
    async list(
      principal: Principal,
      { sessionId, afterSeq, limit }: { sessionId: string; afterSeq: number; limit: number },
    ): Promise<AuditEntry[]> {
      const session = await calls.getSession(sessionId);
      if (session ? !mayAccess(principal, session, "read") : !readsAll(principal)) throw noSuchSession(sessionId);
      const page = { root: session?.rootSessionId ?? sessionId, afterSeq };
      const entries = await permissions.listDecisions({ ...page, limit });
      if (session || entries.length > 0 || afterSeq > 0) return entries;
      throw noSuchSession(sessionId);
    },
  };
}
