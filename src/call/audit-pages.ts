import type { AuditEntry } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Principal } from "../core/principal.ts";
import type { Sessions } from "./sessions.ts";

/** The audit of every session tree that a principal may read. */
export interface AuditSource {
  sessions: Pick<Sessions, "list">;
  listDecisions(page: { root: string; afterSeq: number; limit: number }): Promise<AuditEntry[]>;
  listAudits(page: { before?: string; limit: number }): Promise<string[]>;
}

const pageSize = 500;

/** Reads the audit page by page: the newest session trees first, also those that are gone, and of each the oldest entries first. */
export async function* auditPages(source: AuditSource, principal: Principal): AsyncGenerator<readonly AuditEntry[]> {
  for await (const root of rootsOf(source, principal)) {
    for (let afterSeq = 0; ; ) {
      const entries = await source.listDecisions({ root, afterSeq, limit: pageSize });
      yield entries;
      const last = entries.at(-1);
      if (!last || entries.length < pageSize) break;
      afterSeq = Number(last.seq);
    }
  }
}

async function* rootsOf({ sessions, listAudits }: AuditSource, principal: Principal): AsyncGenerator<string> {
  const known = new Set<string>();
  for (let before: string | undefined; ; ) {
    const page = await sessions.list(principal, { limit: pageSize, ...(before !== undefined && { before }) });
    for (const { rootSessionId } of page) {
      if (!known.has(rootSessionId)) yield rootSessionId;
      known.add(rootSessionId);
    }
    before = page.at(-1)?.id;
    if (page.length < pageSize) break;
  }
  for (let before: string | undefined; ; ) {
    const page = await listAudits({ limit: pageSize, ...(before !== undefined && { before }) });
    for (const root of page) if (!known.has(root)) yield root;
    before = page.at(-1);
    if (page.length < pageSize) return;
  }
}
