import { ConnectError } from "@connectrpc/connect";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Session } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { momentOf } from "../../view/quantities.ts";
import { requesterWords } from "../../view/requester.ts";
import { VirtualList } from "../parts/virtual-list.tsx";
import { visibleText } from "../parts/visible-text.ts";
import { Empty, type PageProps } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import { SessionView } from "./session-view.tsx";

/** The visible sessions, or the selected one. */
export function SessionsPage(props: PageProps) {
  const [sessionId, callId = ""] = props.route.chosen.value;
  if (sessionId === undefined) return <SessionList {...props} />;
  return <SessionView key={sessionId} sessionId={sessionId} callId={callId} {...props} />;
}

function SessionList({ connection: { sessions }, feed }: PageProps) {
  const found = useSignal<readonly Session[]>([]);
  const next = useSignal<string | undefined>("");
  const problem = useSignal("");
  const filter = useSignal("");

  const more = async () => {
    const pageToken = next.value;
    if (pageToken === undefined) return;
    next.value = undefined;
    try {
      const page = await sessions.listSessions({ pageSize: 200, pageToken });
      found.value = [...found.value, ...page.sessions];
      next.value = page.nextPageToken === "" ? undefined : page.nextPageToken;
    } catch (error) {
      problem.value = ConnectError.from(error).rawMessage;
      next.value = pageToken;
    }
  };
  useEffect(() => void more(), []);

  const wanted = filter.value.toLowerCase();
  const shown = found.value.filter((session) =>
    `${session.title} ${session.id} ${requesterWords(session, visibleText)}`.toLowerCase().includes(wanted),
  );
  const waiting = new Set(
    feed.asks.value.filter(({ settled }) => settled === undefined).map(({ request }) => request.sessionId),
  );
  return (
    <div class="pane full">
      <header class="pane-head">
        <h1>Sessions</h1>
        <input
          type="search"
          class="filter"
          aria-label="Filter by title, agent or id"
          placeholder="Filter by title, agent or id"
          value={filter}
          onInput={({ currentTarget }) => {
            filter.value = currentTarget.value;
          }}
        />
      </header>
      {problem.value !== "" && (
        <p class="problem" role="alert">
          {problem}{" "}
          <button type="button" onClick={() => void more()}>
            Try again
          </button>
        </p>
      )}
      {shown.length === 0 ? (
        <Empty title={found.value.length === 0 ? "No sessions yet" : "No matches"}>
          {found.value.length === 0 && "A session begins with an agent’s first call."}
        </Empty>
      ) : (
        <VirtualList
          items={shown}
          rowHeight={68}
          label="Sessions, newest first"
          keyOf={({ id }) => id}
          row={(session) => <SessionRow session={session} isWaiting={waiting.has(session.id)} />}
          onScrolledBack={(atEnd) => {
            if (atEnd) void more();
          }}
        />
      )}
    </div>
  );
}

function SessionRow({ session, isWaiting }: { session: Session; isWaiting: boolean }) {
  const { id, title, owner, created, closed, parentSessionId, workspace } = session;
  return (
    <a class="session-row" href={`#${pathOf("sessions", id)}`}>
      <span class="session-title">
        {parentSessionId !== "" && <span class="unseen">child session: </span>}
        {parentSessionId !== "" && <span aria-hidden="true">↳ </span>}
        <bdi>{title === "" ? id : visibleText(title)}</bdi>
      </span>
      <small>
        {requesterWords(session, visibleText)} · {visibleText(workspace)} · by {visibleText(owner)} ·{" "}
        {momentOf(created)}
      </small>
      {isWaiting && (
        <span class="state-word" data-state="waiting">
          waiting
        </span>
      )}
      {closed > 0 && <span class="state-word">closed</span>}
    </a>
  );
}
