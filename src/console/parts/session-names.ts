import { type ReadonlySignal, signal } from "@preact/signals";
import type { ConsoleConnection } from "../stream/connection.ts";
import { visibleText } from "./visible-text.ts";

/** The titles of sessions, each loaded when it is first shown. */
export interface SessionNames {
  /** The title, or the id until the title is known. */
  of(sessionId: string): string;
}

/** Creates the cache. A component that reads a name is rendered again once the title is known. */
export function createSessionNames({ sessions }: Pick<ConsoleConnection, "sessions">): SessionNames {
  const names = new Map<string, ReadonlySignal<string>>();

  function ask(sessionId: string): ReadonlySignal<string> {
    const name = signal(sessionId);
    sessions.getSession({ sessionId }).then(
      ({ session }) => {
        if (session?.title) name.value = visibleText(session.title);
      },
      // A session that this token cannot read is shown by its id.
      () => undefined,
    );
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
