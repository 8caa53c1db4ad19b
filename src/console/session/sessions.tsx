import { createClient } from "@connectrpc/connect";
import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { OperatorService, type StopRecord } from "../../../gen/opencode/tool/v1/operator_service_pb.ts";
import type { Session } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { durationOf, momentOf } from "../../view/quantities.ts";
import { requesterWords } from "../../view/requester.ts";
import { boundTo } from "../parts/bound.ts";
import { VirtualList } from "../parts/virtual-list.tsx";
import { visibleText } from "../parts/visible-text.ts";
import { failureText, useAttempt, useLoaded } from "../shell/load.ts";
import { useNow } from "../shell/now.ts";
import { Empty, type PageProps, ProblemText } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { Liveness } from "../stream/follow.ts";
import { CallView } from "./call-view.tsx";
import { type CallListRow, createSessionFeed } from "./session-feed.ts";

/** The visible sessions, or the selected one. */
export function SessionsPage(props: PageProps) {
  const [sessionId, callId = ""] = props.route.chosen.value;
  if (sessionId === undefined) return <SessionList {...props} />;
  return <SessionView key={sessionId} sessionId={sessionId} callId={callId} {...props} />;
}

/** Matches to a filter that are loaded before the reader scrolls. */
const firstRows = 30;

function SessionList({ connection: { sessions }, feed }: PageProps) {
  const found = useSignal<readonly Session[]>([]);
  const next = useSignal<string | undefined>("");
  const isLoading = useSignal(false);
  const problem = useSignal("");
  const filter = useSignal("");

  const more = async () => {
    const pageToken = next.value;
    if (pageToken === undefined || isLoading.peek()) return;
    isLoading.value = true;
    try {
      const page = await sessions.listSessions({ pageSize: 200, pageToken });
      found.value = [...found.value, ...page.sessions];
      next.value = page.nextPageToken === "" ? undefined : page.nextPageToken;
      problem.value = "";
    } catch (error) {
      problem.value = failureText(error);
    }
    isLoading.value = false;
  };

  const wanted = filter.value.toLowerCase();
  const shown = found.value.filter((session) =>
    `${session.title} ${session.id} ${requesterWords(session, visibleText)}`.toLowerCase().includes(wanted),
  );
  const isSearching = next.value !== undefined && problem.value === "";
  // A filter looks through all sessions, until its first screens are full.
  useEffect(() => {
    if (found.value.length === 0 || (wanted !== "" && shown.length < firstRows && problem.value === "")) void more();
  }, [wanted, found.value]);
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
          {...boundTo(filter)}
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
        <Empty title={isSearching ? "Loading…" : found.value.length === 0 ? "No sessions yet" : "No matches"}>
          {!isSearching && found.value.length === 0 && "A session begins with an agent’s first call."}
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

/** A session: its calls by time on the left, the selected call with its output on the right. */
function SessionView({ sessionId, callId, connection, feed: asks }: PageProps & { sessionId: string; callId: string }) {
  const feed = useMemo(() => createSessionFeed(connection, sessionId), [connection, sessionId]);
  useEffect(() => feed.close, [feed]);
  const { value: session, problem } = useLoaded(
    async (signal) => (await connection.sessions.getSession({ sessionId }, { signal })).session,
    [sessionId],
  );

  const filter = useSignal("");
  const isFollowing = useSignal(true);
  const shown = useComputed(() => {
    const wanted = filter.value.toLowerCase();
    if (wanted === "") return feed.calls.value;
    return feed.calls.value.filter(({ tool, title, state }) =>
      `${tool} ${title} ${state}`.toLowerCase().includes(wanted),
    );
  });
  if (problem !== "") {
    return (
      <Empty title="This session cannot be shown">
        {problem} <a href="#/sessions">Go to the sessions</a>
      </Empty>
    );
  }
  return (
    <div class="split" data-chosen={callId !== ""}>
      <section class="pane list-pane" aria-label="Calls">
        <header class="pane-head stacked">
          <a class="back always" href="#/sessions">
            ← Sessions
          </a>
          <h1>
            <bdi>{visibleText(session?.title || sessionId)}</bdi>
          </h1>
          <Facts session={session} count={feed.calls.value.length} liveness={feed.liveness.value} />
          {connection.may("approver", "admin") && session && <StopControl session={session} connection={connection} />}
          <input
            type="search"
            class="filter"
            aria-label="Filter calls by tool, title or state"
            placeholder="Filter calls"
            {...boundTo(filter)}
          />
        </header>
        <VirtualList
          items={shown.value}
          rowHeight={58}
          label="Calls, oldest first"
          keyOf={({ callId }) => callId}
          follow={isFollowing.value && callId === ""}
          current={callId === "" ? -1 : shown.value.findIndex((row) => row.callId === callId)}
          onScrolledBack={(atEnd) => (isFollowing.value = atEnd)}
          row={(row) => <CallLine row={row} sessionId={sessionId} isCurrent={row.callId === callId} />}
        />
      </section>
      <section class="pane detail-pane" aria-label="Call">
        {callId === "" ? (
          <Empty title="Select a call">Its input, output and state are shown here.</Empty>
        ) : (
          <CallView
            key={callId}
            sessionId={sessionId}
            callId={callId}
            owner={session?.owner ?? ""}
            connection={connection}
            feed={feed}
            asks={asks}
          />
        )}
      </section>
    </div>
  );
}

function Facts({ session, count, liveness }: { session: Session | undefined; count: number; liveness: Liveness }) {
  return (
    <p class="hint">
      {count} {count === 1 ? "call" : "calls"}
      {session && ` · ${requesterWords(session, visibleText)} · ${visibleText(session.workspace)}`}
      {session?.parentSessionId && (
        <>
          {" "}
          · <a href={`#${pathOf("sessions", session.parentSessionId)}`}>parent</a>
        </>
      )}
      {session !== undefined && session.closed > 0 && " · closed"}
      {session !== undefined && (
        <>
          {" "}
          · <a href={`#${pathOf("policy", "decisions", session.id)}`}>decisions</a>
        </>
      )}
      {liveness !== "live" && (
        <b class="not-live" role="status">
          {" "}
          · {liveness === "connecting" ? "connecting…" : "not live, trying again"}
        </b>
      )}
    </p>
  );
}

function CallLine({ row, sessionId, isCurrent }: { row: CallListRow; sessionId: string; isCurrent: boolean }) {
  const { callId, tool, title, state, reason, start } = row;
  return (
    <a
      class="call-row"
      href={`#${pathOf("sessions", sessionId, callId)}`}
      aria-current={isCurrent ? "true" : undefined}
      data-state={state}
    >
      <span class="state-dot" aria-hidden="true" />
      <span class="call-tool">
        {visibleText(tool)}
        <span class="state-word" data-state={state}>
          {state === "error" ? reason : state}
        </span>
      </span>
      <span class="call-title mono">{title}</span>
      <span class="call-time">
        {start > 0 && <time>{new Date(start).toLocaleTimeString()}</time>}
        <Duration row={row} />
      </span>
    </a>
  );
}

function Duration({ row: { start, end, state } }: { row: CallListRow }) {
  if (start === 0) return null;
  if (state === "running") return <Running since={start} />;
  return <b>{durationOf(end - start)}</b>;
}

function Running({ since }: { since: number }) {
  return <b>{durationOf(useNow() - since)}</b>;
}

type Reach = "session" | "agent" | "all";

/** Stops the session, its agent or everything, behind one confirmation, and resumes what is stopped. */
function StopControl({
  session: { id, agent },
  connection: { transport },
}: {
  session: Session;
  connection: Pick<ConsoleConnection, "transport">;
}) {
  const operator = useMemo(() => createClient(OperatorService, transport), [transport]);
  const stops = useSignal<readonly StopRecord[]>([]);
  const reach = useSignal<Reach>("session");
  const isAsked = useSignal(false);
  const { failure, attempt } = useAttempt();

  const refresh = async () => {
    stops.value = (await operator.listStops({})).stops;
  };
  const change = (step: () => Promise<unknown>) =>
    attempt(async () => {
      await step();
      await refresh();
      isAsked.value = false;
    });
  // Closes no confirmation that a person opened meanwhile.
  useEffect(() => void attempt(refresh), [operator]);

  const words = {
    session: "this session and its descendants",
    agent: `agent ${visibleText(agent)}`,
    all: "every agent",
  };
  const targets = {
    session: { case: "sessionId", value: id },
    agent: { case: "agent", value: agent },
    all: { case: "all", value: true },
  } as const;
  const held = stops.value.flatMap((stop) => {
    const { case: kind, value } = stop.target?.target ?? {};
    if (kind === "all") return [{ stop, what: words.all }];
    if (kind === "agent") return value === agent ? [{ stop, what: words.agent }] : [];
    return value === id ? [{ stop, what: words.session }] : [];
  });
  return (
    <>
      {held.map(({ stop, what }) => (
        <p class="problem" role="status" key={stop.id}>
          {visibleText(stop.by)} stopped {what}.{" "}
          <button type="button" onClick={() => void change(() => operator.resume({ target: stop.target }))}>
            Resume
          </button>
        </p>
      ))}
      {isAsked.value ? (
        <fieldset class="answer-form">
          <legend>No call of it starts, and what runs is cancelled, until it is resumed.</legend>
          <select
            aria-label="What to stop"
            value={reach}
            onChange={({ currentTarget }) => (reach.value = currentTarget.value as Reach)}
          >
            {Object.entries(words).map(([name, what]) => (
              <option key={name} value={name}>
                {what}
              </option>
            ))}
          </select>{" "}
          <button
            type="button"
            class="danger"
            onClick={() => void change(() => operator.stop({ target: { target: targets[reach.value] } }))}
          >
            Stop {words[reach.value]}
          </button>{" "}
          <button type="button" onClick={() => (isAsked.value = false)}>
            Back
          </button>
        </fieldset>
      ) : (
        <button type="button" onClick={() => (isAsked.value = true)}>
          Stop…
        </button>
      )}
      <ProblemText text={failure} />
    </>
  );
}
