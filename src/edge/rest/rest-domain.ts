import { createFeed } from "../../call/feed.ts";
import type { Store } from "../../call/ports.ts";
import type { Sessions } from "../../call/sessions.ts";
import { sessionFrames } from "./event-stream.ts";
import type { RestDoorOptions } from "./rest-door.ts";
import type { EventSources, RootDirectories } from "./shapes.ts";

/** Creates the domain of the door over a store. */
export function createRestDomain({
  store: { calls, permissions: asks, outputs },
  sessions,
  roots,
}: {
  store: Store;
  sessions: Sessions;
  roots: RootDirectories;
}): NonNullable<RestDoorOptions["rest"]> {
  const sources: EventSources = { calls, asks, outputs, roots };
  const domain = { sources, sessions, store: calls };
  return { ...domain, feed: createFeed(domain, (event, session) => sessionFrames(sources, event, session)) };
}
