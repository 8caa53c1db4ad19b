import { type ReadonlySignal, signal } from "@preact/signals";
import type { ConsoleConnection } from "../stream/connection.ts";
import { visibleText } from "./visible-text.ts";

/** The titles of sessions, each loaded when it is first shown. */
export interface SessionNames {
  /** The title, or the id until the title is known. */
  of(sessionId: string): string;
}

/** Lookups at the same time: a filter reads the titles of all sessions, and an answer must not wait behind hundreds of them. */
const maxLookups = 3;
const lookupMs = 5_000;

/** Creates the cache. A component that reads a name is rendered again once the title is known. */
export function createSessionNames({ sessions }: Pick<ConsoleConnection, "sessions">): SessionNames {
  const names = new Map<string, ReadonlySignal<string>>();
  const lookups = Array.from({ length: maxLookups }, () => Promise.resolve());

  function ask(sessionId: string): ReadonlySignal<string> {
    const name = signal(sessionId);
    const read = async () => {
      const { session } = await sessions.getSession({ sessionId }, { timeoutMs: lookupMs });
      if (session?.title) name.value = visibleText(session.title);
    };
    const at = names.size % maxLookups;
    // A session that this token cannot read is shown by its id.
    lookups[at] = (lookups[at] ?? Promise.resolve()).then(read).catch(() => undefined);
    return name;
  }

  return {
    of(sessionId) {
      const name = names.get(sessionId) ?? ask(sessionId);
      names.set(sessionId, name);
      return name.value;
    },
  };
}
