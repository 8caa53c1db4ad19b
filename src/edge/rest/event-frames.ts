import type { SessionEvent } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { Session } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { workspaceRoot } from "../../core/workspace-root.ts";
import { type EventSources, type RestEvent, restEvents } from "./event-json.ts";

/** Form of a stream: the events of one directory, or of all with the directory of each. */
export type StreamForm = "event" | "global";

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
