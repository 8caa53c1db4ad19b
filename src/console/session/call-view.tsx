import { ConnectError } from "@connectrpc/connect";
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { errorReasonWords, failedCommandWords, isUnreported } from "../../view/calls.ts";
import { durationOf, momentOf } from "../../view/quantities.ts";
import { requesterWords } from "../../view/requester.ts";
import type { AskFeed } from "../inbox/ask-feed.ts";
import { visibleText } from "../parts/visible-text.ts";
import { Empty } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { Attachments, Failure, Input, Metadata, Places, visibleJson } from "./call-sections.tsx";
import { OutputView } from "./output-view.tsx";
import type { SessionFeed } from "./session-feed.ts";

/** The details of a call, live. */
export function CallView({
  sessionId,
  callId,
  owner,
  connection,
  feed,
  asks,
}: {
  sessionId: string;
  callId: string;
  /** The principal that created the session. */
  owner: string;
  connection: ConsoleConnection;
  feed: SessionFeed;
  asks: AskFeed;
}) {
  const part = useSignal<ToolPart | undefined>(undefined);
  const problem = useSignal("");
  useEffect(() => {
    const take = (now: ToolPart) => {
      const known = part.value;
      if (known !== undefined && now.revision < known.revision) return;
      part.value = now.inputElided && known !== undefined ? withInputOf(now, known) : now;
    };
    const stop = feed.onEvent(({ event }) => {
      if (event.case === "part" && event.value.callId === callId) take(event.value);
    });
    connection.tools.getToolPart({ sessionId, callId }).then(
      (answer) => {
        if (answer.part !== undefined) take(answer.part);
      },
      (error: unknown) => {
        problem.value = ConnectError.from(error).rawMessage;
      },
    );
    return stop;
  }, [sessionId, callId]);

  const call = part.value;
  if (call === undefined) return problem.value === "" ? null : <Empty title="Call not found">{problem}</Empty>;
  const { state } = call;
  const waits = asks.asks.value.filter(
    ({ request, settled }) =>
      settled === undefined && request.sessionId === sessionId && request.tool?.callId === callId,
  );
  return (
    <article class="call">
      <a class="back" href={`#${pathOf("sessions", sessionId)}`}>
        ← Calls
      </a>
      <header class="call-head">
        <div>
          <h1>
            {visibleText(call.tool)} <StateWord part={call} />
          </h1>
          <p class="hint">
            <bdi>{requesterWords(call, visibleText)}</bdi> · {timesOf(call)} · <code>{visibleText(callId)}</code>
          </p>
        </div>
        {(state.case === "pending" || state.case === "running") && (
          <Cancel connection={connection} owner={owner} sessionId={sessionId} callId={callId} />
        )}
      </header>
      {waits[0] && (
        <p class="waits">
          Waiting for an answer. <a href={`#${pathOf("requests", waits[0].request.id)}`}>Open the request</a>
        </p>
      )}
      {call.childSessionId !== "" && (
        <p class="hint">
          The subagent works in another session.{" "}
          <a href={`#${pathOf("sessions", call.childSessionId)}`}>Open its session</a>
        </p>
      )}
      {state.case === "error" && <Failure error={state.value} />}
      <Input input={state.value?.input} />
      {call.editedBy !== "" && (
        <p class="hint">
          Edited by <b>{visibleText(call.editedBy)}</b>; the agent sent <code>{visibleJson(call.originalInput)}</code>
        </p>
      )}
      <Places part={call} />
      <OutputView part={call} connection={connection} feed={feed} />
      {state.case === "completed" && <Attachments files={state.value.attachments} {...{ sessionId, connection }} />}
      <Metadata part={call} />
    </article>
  );
}

function StateWord({ part }: { part: ToolPart }) {
  const { state, permissionIds } = part;
  const failure = failedCommandWords(part);
  if (failure !== "") return <StateLabel state="error">{visibleText(failure)}</StateLabel>;
  const isWaiting = state.case === "pending" && permissionIds.length > 0;
  return (
    <StateLabel state={isWaiting ? "waiting" : isUnreported(part) ? "unreported" : state.case}>
      {state.case === "error" ? errorReasonWords(state.value.reason) : isWaiting ? "waiting" : state.case}
    </StateLabel>
  );
}

function StateLabel({ state, children }: { state: string | undefined; children: ComponentChildren }) {
  return (
    <span class="state-word" data-state={state}>
      {children}
    </span>
  );
}

/** Copies the known input into a snapshot that omits it. */
function withInputOf(now: ToolPart, known: ToolPart): ToolPart {
  const input = known.state.value?.input;
  if (now.state.value !== undefined && input !== undefined) now.state.value.input = input;
  return now;
}

function timesOf({ state }: ToolPart): string {
  if (state.case === "pending" || state.value?.time === undefined) return "not started";
  const { time } = state.value;
  if (!("end" in time)) return `since ${momentOf(time.start)}`;
  return `${momentOf(time.start)}, took ${durationOf(time.end - time.start)}`;
}

/** The button that cancels the call; absent for principals that may not. */
function Cancel({
  connection,
  owner,
  sessionId,
  callId,
}: {
  connection: ConsoleConnection;
  owner: string;
  sessionId: string;
  callId: string;
}) {
  const problem = useSignal("");
  const isSending = useSignal(false);
  const { server, may, tools } = connection;
  if (!may("admin") && !(may("caller") && owner === server.principal)) return null;
  const cancel = async () => {
    isSending.value = true;
    await tools.cancelTool({ sessionId, callId }).catch((error: unknown) => {
      problem.value = ConnectError.from(error).rawMessage;
    });
    isSending.value = false;
  };
  return (
    <div>
      <button type="button" class="danger" disabled={isSending} onClick={() => void cancel()}>
        Cancel this call
      </button>
      <p class="problem" role="alert">
        {problem}
      </p>
    </div>
  );
}
