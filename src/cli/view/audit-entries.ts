import type { AuditEntry } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import type { ServerConnection } from "../connection/connection.ts";
import { UsageError } from "../failure/command-error.ts";

/** Reads the audit, session tree by session tree, each oldest first; also of trees that are gone. */
export async function* auditEntries(server: ServerConnection, session: string | undefined): AsyncGenerator<AuditEntry> {
  for await (const root of rootsOf(server, session)) yield* entriesOf(server, root);
}

async function* rootsOf(server: ServerConnection, session: string | undefined): AsyncGenerator<string> {
  if (session !== undefined) return yield session;
  const living = new Set<string>();
  for await (const page of pagesOf((page) => server.sessions.listSessions(page)))
    for (const { rootSessionId } of page.sessions) living.add(rootSessionId);
  yield* living;
  for await (const { rootSessionIds } of pagesOf((page) => server.permissions.listAudits(page))) {
    // A deleted session may exist again under the same id.
    for (const root of rootSessionIds) if (!living.has(root)) yield root;
  }
}

async function* entriesOf({ permissions }: ServerConnection, sessionId: string): AsyncGenerator<AuditEntry> {
  for (let afterSeq = 0n; ; ) {
    const { entries, end } = await permissions.listDecisions({ sessionId, afterSeq, pageSize: 500 });
    yield* entries;
    const last = entries.at(-1);
    if (end || !last) return;
    afterSeq = last.seq;
  }
}

/** Returns the time so many days ago, in ms since the epoch. */
export function daysAgo(text: string): number {
  return Date.now() - daysOf(text) * 86_400_000;
}

/** Reads a number of days. */
export function daysOf(text: string): number {
  const days = Number(text);
  if (Number.isInteger(days) && days > 0 && days <= 3_650) return days;
  throw new UsageError(`--days ${text} is no number of days`, "write a number from 1 to 3650");
}
