import { ConnectError } from "@connectrpc/connect";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { GetPermissionResponse } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { errorReasonWords } from "../../view/outcomes.ts";
import { momentOf } from "../../view/quantities.ts";
import { asksQuestions } from "../../view/questions.ts";
import { requesterWords } from "../../view/requester.ts";
import type { SessionNames } from "../parts/session-names.ts";
import { isApproved, settledText } from "../parts/settled.ts";
import { visibleText } from "../parts/visible-text.ts";
import { Empty } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { AskIds, headingOf } from "./ask-head.tsx";
import { AskPreview } from "./ask-preview.tsx";
import { AskedQuestions } from "./asked-questions.tsx";

/** The request of an outcome. */
export interface OutcomeProps {
  id: string;
  connection: ConsoleConnection;
  names: SessionNames;
}

const refreshMs = 2_000;

/** A request that is not open any more: who answered it, when, and what came of its call. */
export function Outcome({ id, connection, names }: OutcomeProps) {
  const found = useSignal<GetPermissionResponse | undefined>(undefined);
  const problem = useSignal("");
  useEffect(() => {
    let timer = 0;
    const abort = new AbortController();
    const read = async () => {
      try {
        const response = await connection.permissions.getPermission({ permissionId: id }, { signal: abort.signal });
        found.value = response;
        problem.value = "";
        if (isOver(response)) return;
      } catch (error) {
        if (abort.signal.aborted) return;
        problem.value = ConnectError.from(error).rawMessage;
      }
      timer = window.setTimeout(() => void read(), refreshMs);
    };
    void read();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [id]);

  const request = found.value?.permission;
  const settled = found.value?.settled;
  if (request === undefined) {
    return problem.value === "" ? (
      <Empty title="Loading…" />
    ) : (
      <Empty title="This request is not known">{visibleText(problem.value)}</Empty>
    );
  }
  if (settled === undefined) return <Empty title="Loading…" />;
  const part = found.value?.part;
  return (
    <article class="ask-card" aria-labelledby="ask-title">
      <a class="back" href="#/inbox">
        ← Inbox
      </a>
      <header class="ask-head">
        <h1 id="ask-title">
          <bdi>{requesterWords(request, visibleText)}</bdi> {headingOf(request, "asked")}
        </h1>
        <p class="ask-who">
          <a href={`#${pathOf("sessions", request.sessionId)}`}>
            <bdi>{names.of(request.sessionId)}</bdi>
          </a>
        </p>
      </header>
      <p class="outcome" data-approved={isApproved(settled)}>
        <b>{settledText(settled)}</b>{" "}
        <time dateTime={new Date(settled.time).toISOString()}>{momentOf(settled.time)}</time>
      </p>
      {asksQuestions(request) ? (
        <AskedQuestions request={request} settled={settled} />
      ) : (
        <AskPreview
          key={id}
          requests={[request]}
          connection={connection}
          isOpen={false}
          isOver
          onWhole={() => undefined}
          onUnread={() => undefined}
        />
      )}
      {part !== undefined && (
        <p>
          {stateWords(part)} <a href={`#${pathOf("sessions", request.sessionId, part.callId)}`}>See its output</a>
        </p>
      )}
      <AskIds request={request} />
    </article>
  );
}

function isOver({ settled, part }: GetPermissionResponse): boolean {
  const state = part?.state.case;
  return settled !== undefined && (state === "completed" || state === "error");
}

function stateWords({ state }: ToolPart): string {
  if (state.case === "completed") return "The call completed.";
  if (state.case === "error") return `The call ended: ${errorReasonWords(state.value.reason)}.`;
  return state.case === "running" ? "The call is running." : "The call has not started yet.";
}
