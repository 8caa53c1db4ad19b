import type { Session } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import type { PermissionRequest, ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import type { ServerConnection } from "./connection.ts";

/** A call that has not ended, with its open permission requests. */
export interface WaitingCall {
  part: ToolPart;
  asks: readonly PermissionRequest[];
  /** The title of its session; empty if it has none. */
  sessionTitle: string;
}

/** Tracks the open calls of all sessions, on any replica. */
export interface WaitingCalls {
  /** Refreshes the sessions that have new events since the last time. */
  look(): Promise<readonly WaitingCall[]>;
}

/** Tracks the open calls that this connection may see. */
export function createWaitingCalls(server: ServerConnection): WaitingCalls {
  const known = new Map<string, { lastSeq: bigint; calls: readonly WaitingCall[] }>();
  return {
    async look() {
      const sessions = new Map<string, Session>();
      for await (const session of allSessions(server)) if (session.closed === 0) sessions.set(session.id, session);
      for (const id of known.keys()) if (!sessions.has(id)) known.delete(id);
      const queue = sessions.values().filter(({ id, lastSeq }) => known.get(id)?.lastSeq !== lastSeq);
      // The workers share one iterator: each takes the next session.
      await Promise.all(
        Array.from({ length: atATime }, async () => {
          for (const session of queue)
            known.set(session.id, { lastSeq: session.lastSeq, calls: await openIn(server, session) });
        }),
      );
      return [...known.values()].flatMap(({ calls }) => calls);
    },
  };
}

/** Yields all sessions that this connection may see, newest first. */
export async function* allSessions({ sessions }: ServerConnection): AsyncGenerator<Session> {
  for await (const page of pagesOf((page) => sessions.listSessions(page))) yield* page.sessions;
}

/** Reads the open calls of a session from the snapshot with which a watch begins. */
async function openIn({ tools }: ServerConnection, { id, title }: Session): Promise<WaitingCall[]> {
  const parts: ToolPart[] = [];
  const asks: PermissionRequest[] = [];
  const seen = new AbortController();
  const signal = AbortSignal.any([seen.signal, AbortSignal.timeout(patienceMs)]);
  // Only the signal ends the stream: leaving the loop does not, and a timeout of the client would outlive it.
  const frames = tools.watchSession({ sessionId: id, snapshot: true }, { signal, timeoutMs: 0 });
  for await (const { event, snapshotEnd } of frames) {
    if (event?.event.case === "part") parts.push(event.event.value);
    if (event?.event.case === "permissionAsked") asks.push(event.event.value);
    if (snapshotEnd) break;
  }
  seen.abort();
  return parts.map((part) => ({
    part,
    asks: asks.filter((ask) => part.permissionIds.includes(ask.id)),
    sessionTitle: title,
  }));
}

const atATime = 8;
const patienceMs = 30_000;
