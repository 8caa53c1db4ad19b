import { randomUUID } from "node:crypto";
import { once } from "node:events";
import type { SessionEvent } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { Session } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { createFeed, type Feed, followFeed, parsePosition, positionAt, positionText } from "../../call/feed.ts";
import type { Store, StoreClock, StoreMembership } from "../../call/ports.ts";
import { mayAccess, type Sessions } from "../../call/sessions.ts";
import { workspaceRoot } from "../../core/paths.ts";
import type { Principal } from "../../core/principal.ts";
import { cutResponse, type Response } from "../http/handler.ts";
import { type EventSources, type RestEvent, type RootDirectories, restEvents, sessionChange } from "./shapes.ts";

/** State that all streams of a replica share. */
export interface EventStreams {
  feed: Feed<EventFrames>;
  sources: EventSources;
  store: StoreClock & Pick<StoreMembership, "storeId">;
}

/** Creates the domain of the door over a store. */
export function createRestDomain({
  store: { calls, permissions: asks, outputs },
  sessions,
  roots,
}: {
  store: Store;
  sessions: Sessions;
  roots: RootDirectories;
}): EventStreams & { sessions: Sessions } {
  const sources: EventSources = { calls, asks, outputs, roots };
  const domain = { sources, sessions, store: calls };
  return { ...domain, feed: createFeed(domain, (event, session) => sessionFrames(sources, event, session), gatherMs) };
}

/** A request for a stream. */
export interface EventStreamRequest {
  principal: Principal;
  form: StreamForm;
  /** Workspace root whose sessions are sent; undefined: all that the principal may read. */
  workspace: string | undefined;
  /** Id of the last event that the client has. */
  lastEventId: string | undefined;
}

/** Interval of heartbeats, which is that of opencode's server: its clients count on it. */
const beatMs = 10_000;
/** Time in which news gather, in ms: most of what an event costs is to wake each client and to write to it. */
const gatherMs = 10;
/** Pause after which a client connects again, in ms. Clients double it with each attempt. */
const retryMs = 250;

/** Length of the text of events that are sent together. */
const maxUnsentLength = 65_536;

/** Sends events until the client leaves, or the signal is aborted: then the stream is reset, since clients resume only after an error. */
export async function sendEventStream(
  { feed, sources, store }: EventStreams,
  { principal, form, workspace, lastEventId }: EventStreamRequest,
  response: Response,
  signal: AbortSignal,
): Promise<void> {
  const resumed = lastEventId === undefined ? undefined : parsePosition(lastEventId, store.storeId);
  const position = resumed ?? positionAt(store.now() - 1);
  const { storeId } = store;
  let unsent = "";
  const flush = async () => {
    const text = unsent;
    unsent = "";
    if (text !== "") await sendText(response, text, signal);
  };
  const send = async (frames: EventFrames) => {
    unsent += `${frames.text(form)}id: ${positionText(position, storeId)}\n\n`;
    if (unsent.length > maxUnsentLength) await flush();
  };
  const everywhere = form === "global" ? "global" : (sources.roots.get(workspace ?? "") ?? "");
  const server = (type: string, directory = everywhere) =>
    framesOf(
      [{ type: `server.${type}`, properties: type === "instance.disposed" ? { directory } : {} }],
      `server_${randomUUID()}`,
      { directory },
    );
  response.statusCode = 200;
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  try {
    unsent = `retry: ${retryMs}\n\n`;
    const sees = (session: Session) =>
      mayAccess(principal, session, "read") &&
      (workspace === undefined || workspaceRoot(session.workspace) === workspace);
    const reader = { sees, position, resumesAs: resumed && principal };
    for await (const item of followFeed(feed, reader, { beatMs, signal })) {
      if (item.kind === "begin") {
        await send(server("connected"));
        // Clients read everything again after this event.
        if (lastEventId !== undefined && resumed === undefined) await send(server("instance.disposed"));
      } else if (item.kind === "beat") await send(server("heartbeat"));
      else if (item.kind === "pause") await flush();
      else if (item.kind === "event") await send(item.value);
      else if (item.kind === "created") await send(createdFrames(sources, item.session));
      else await send(server("instance.disposed", projectPlaceOf(sources, item.session).directory));
    }
  } finally {
    cutResponse(response);
  }
}

/** Creates the frames for a session that has no event yet. */
function createdFrames(sources: EventSources, session: Session): EventFrames {
  return framesOf(
    [sessionChange("session.created", session, sources.roots)],
    `${session.id}_0`,
    projectPlaceOf(sources, session),
  );
}

const headers = {
  "content-type": "text/event-stream",
  "cache-control": "no-cache, no-transform",
  "x-accel-buffering": "no",
};

/** Sends text, and waits until the client has taken most of it. */
async function sendText(response: Response, text: string, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  const isTaken = "stream" in response ? response.write(text) : response.write(text);
  if (!isTaken) await once(response, "drain", { signal });
}

/** Form of a stream: the events of one directory, or of all with the directory of each. */
type StreamForm = "event" | "global";

/** Events that are sent together, as text that all clients share. */
export interface EventFrames {
  /** Returns the frames of server-sent events. The last one lacks its end, so that the id of the client's position follows. */
  text(form: StreamForm): string;
}

/** Creates the frames of events about a session; `key` distinguishes them from those of all other events. */
export function framesOf(
  events: readonly RestEvent[],
  key: string,
  { directory, project }: { directory: string; project?: string },
): EventFrames {
  const bodies = events.map(({ type, properties }, index) =>
    JSON.stringify({ id: `evt_${key}_${index}`, type, properties }),
  );
  const texts: Partial<Record<StreamForm, string>> = {};
  const wrap = (payload: string) =>
    `${JSON.stringify({ directory, ...(project !== undefined && { project }) }).slice(0, -1)},"payload":${payload}}`;
  return {
    text(form) {
      texts[form] ??= bodies.map((body) => `data: ${form === "event" ? body : wrap(body)}\n`).join("\n");
      return texts[form];
    },
  };
}

/** Creates the frames of a session's event; undefined if opencode has no event for it. */
export async function sessionFrames(
  sources: EventSources,
  event: SessionEvent,
  session: Session,
): Promise<EventFrames | undefined> {
  const events = await restEvents(sources, event, session);
  return events.length === 0
    ? undefined
    : framesOf(events, `${session.id}_${event.seq}`, projectPlaceOf(sources, session));
}

/** Returns the directory and the project of a session. */
export function projectPlaceOf({ roots }: Pick<EventSources, "roots">, { workspace }: Session) {
  const project = workspaceRoot(workspace);
  return { directory: roots.get(project) ?? "", project };
}
