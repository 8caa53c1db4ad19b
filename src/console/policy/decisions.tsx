import { momentOf } from "../../view/quantities.ts";
import { visibleText } from "../parts/visible-text.ts";
import { useLoaded } from "../shell/load.ts";
import { Empty, type PageProps } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import { DecisionLog } from "./decision-log.tsx";

/** The decisions about the calls of a session tree, and the state of their hash chain. */
export function DecisionsPage({ connection, route }: PageProps) {
  const [, named = ""] = route.chosen.value;
  const roots = useLoaded(
    async (signal) => {
      const { sessions } = await connection.sessions.listSessions({ pageSize: 200 }, { signal });
      return sessions.filter(({ id, rootSessionId }) => id === rootSessionId);
    },
    [connection],
  );
  const sessionId = named || (roots.value?.[0]?.id ?? "");
  const isListed = roots.value?.some(({ id }) => id === sessionId);
  return (
    <section aria-label="Decisions">
      <p class="hint">Every decision about a call is a record in a hash chain, stored for 90 days.</p>
      <label class="labelled">
        <span>Session and its children</span>
        <select
          value={sessionId}
          aria-busy={roots.isLoading}
          onChange={({ currentTarget }) => route.go(pathOf("policy", "decisions", currentTarget.value))}
        >
          {named !== "" && !isListed && <option value={named}>{visibleText(named)}</option>}
          {roots.value?.map(({ id, title, created }) => (
            <option key={id} value={id}>
              {visibleText(title || id)}, {momentOf(created)}
            </option>
          ))}
        </select>
      </label>
      {roots.problem !== "" && (
        <p class="problem" role="alert">
          {roots.problem}
        </p>
      )}
      {sessionId === "" && !roots.isLoading && <Empty title="No sessions yet">Decisions are made about calls.</Empty>}
      {sessionId !== "" && <DecisionLog key={sessionId} connection={connection} sessionId={sessionId} />}
    </section>
  );
}
