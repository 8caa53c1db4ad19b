import { hash, randomUUID } from "node:crypto";
import type { McpClient } from "../../agents/mcp/client-identity.ts";
import { type McpSession, openMcpSession } from "../../agents/mcp/mcp-session.ts";
import type { ToolgateApi } from "../../agents/mcp/toolgate-api.ts";

/** A request for the session of a client over HTTP. */
export interface SessionRequest {
  readonly api: ToolgateApi;
  readonly principalId: string;
  readonly client: McpClient;
  /** Session that the operator chose. */
  readonly pinned: string | undefined;
  /** Session of the legacy protocol; empty if there is none. */
  readonly mcpSessionId: string;
}

/** Time without a request after which a client without another session begins a new one. */
const idleMs = 12 * 3_600_000;
const maxKnown = 10_000;

/**
 * Creates the choice of sessions: the one that the operator chose, otherwise one for each legacy session, otherwise one for each
 * principal and name of a client.
 */
export function createHttpSessions(now: () => number = Date.now): (request: SessionRequest) => Promise<McpSession> {
  const known = new Map<string, { opened: Promise<McpSession>; used: number }>();

  return async ({ api, principalId, client, pinned, mcpSessionId }) => {
    const key = JSON.stringify([
      principalId,
      pinned ?? "",
      pinned === undefined ? mcpSessionId || client.name : client.name,
    ]);
    const current = known.get(key);
    known.delete(key);
    const isCurrent = current !== undefined && now() - current.used < idleMs;
    const sessionId = pinned ?? (mcpSessionId === "" ? newSessionId() : derivedId(principalId, mcpSessionId));
    const opened = isCurrent ? current.opened : openMcpSession(api, { sessionId, client, transport: "http" });
    known.set(key, { opened, used: now() });
    // A session that was not opened is tried again by the next request.
    opened.catch(() => known.delete(key));
    const oldest = known.size > maxKnown ? known.keys().next().value : undefined;
    if (oldest !== undefined) known.delete(oldest);
    return await opened;
  };
}

const newSessionId = () => `ses_${randomUUID().replaceAll("-", "")}`;

/** A legacy session keeps its Toolgate session across restarts and replicas. */
function derivedId(principalId: string, mcpSessionId: string): string {
  return `ses_${hash("sha256", JSON.stringify([principalId, mcpSessionId]), "hex").slice(0, 32)}`;
}
