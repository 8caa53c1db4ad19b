import { type ReadonlySignal, signal } from "@preact/signals";
import type { ConsoleConnection } from "../stream/connection.ts";
import { visibleText } from "./visible-text.ts";

/** The titles of sessions, each asked for when it is first shown. */
export interface SessionNames {
  /** The title, or the id as long as no title is known. */
  of(sessionId: string): string;
}

/** Creates it; reading a name in a component shows it anew once it is known. */
export function createSessionNames({ sessions }: Pick<ConsoleConnection, "sessions">): SessionNames {
  const names = new Map<string, ReadonlySignal<string>>();

  function ask(sessionId: string): ReadonlySignal<string> {
    const name = signal(sessionId);
    sessions.getSession({ sessionId }).then(
      ({ session }) => {
        if (session?.title) name.value = visibleText(session.title);
      },
      // A session that cannot be read is shown by its id.
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
