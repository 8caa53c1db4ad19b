import type { JsonObject } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { FilePart, ToolPart, ToolStateError } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { effectsWords, errorReasonWords, failedCommandWords, isUnreported } from "../../view/outcomes.ts";
import { behindWords } from "../../view/people.ts";
import { namedPlacesOf, placeText } from "../../view/places.ts";
import { durationOf, momentOf, sizeOf } from "../../view/quantities.ts";
import { readWhole } from "../../view/read-output.ts";
import { requesterWords } from "../../view/requester.ts";
import { capitalized } from "../../view/words.ts";
import type { AskFeed } from "../inbox/ask-feed.ts";
import { Pre } from "../parts/long-text.tsx";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import { useAttempt } from "../shell/load.ts";
import { Empty, ProblemText } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
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
            <bdi>{requesterWords(call, visibleText)}</bdi>
            {behindWords(call, visibleText)} · {timesOf(call)} · <code>{visibleText(callId)}</code>
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
  const { failure, attempt } = useAttempt();
  const isSending = useSignal(false);
  const { server, may, tools } = connection;
  if (!may("admin") && !(may("caller") && owner === server.principal)) return null;
  const cancel = async () => {
    isSending.value = true;
    await attempt(() => tools.cancelTool({ sessionId, callId }));
    isSending.value = false;
  };
  return (
    <div>
      <button type="button" class="danger" disabled={isSending} onClick={() => void cancel()}>
        Cancel this call
      </button>
      <ProblemText text={failure} />
    </div>
  );
}

/** The message of a failed call, and the effects that it may have had. */
function Failure({ error: { error, effects } }: { error: ToolStateError }) {
  return (
    <div class="failure">
      <Pre text={visibleLines(error)} />
      <p>{capitalized(effectsWords(effects))}.</p>
    </div>
  );
}

/** The input of a call by argument. */
function Input({ input }: { input: JsonObject | undefined }) {
  const fields = Object.entries(input ?? {});
  if (fields.length === 0) return null;
  return (
    <section class="block">
      <h2>Input</h2>
      <dl class="fields">
        {fields.map(([name, value]) => (
          <div key={name}>
            <dt>{visibleText(name)}</dt>
            <dd>
              <Pre text={visibleLines(typeof value === "string" ? value : JSON.stringify(value, null, 2))} />
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

/** The places that the output names: each opens in an editor, and its line unfolds to the lines around it. */
function Places({ part }: { part: ToolPart }) {
  const { directory, places } = namedPlacesOf(part);
  if (places.length === 0) return null;
  return (
    <section class="block">
      <h2>Places, to open in VS Code</h2>
      <ul class="places mono">
        {places.map((place, i) => (
          <li key={i}>
            <a href={encodeURI(`vscode://file${directory}/${placeText(place)}`).replaceAll("#", "%23")}>
              {visibleText(placeText(place))}
            </a>
            {place.preview && (
              <details>
                <summary>{visibleText(/^> +\d+ (.*)/m.exec(place.preview)?.[1] ?? "")}</summary>
                <Pre text={visibleLines(place.preview)} />
              </details>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The files that a call returned. */
function Attachments({
  files,
  sessionId,
  connection,
}: {
  files: readonly FilePart[];
  sessionId: string;
  connection: ConsoleConnection;
}) {
  if (files.length === 0) return null;
  return (
    <section class="block">
      <h2>Attachments</h2>
      {files.map((file) => (
        <AttachmentView key={file.url} file={file} sessionId={sessionId} connection={connection} />
      ))}
    </section>
  );
}

/** The metadata that tools return for user interfaces, and the structured output. */
function Metadata({ part: { state } }: { part: ToolPart }) {
  const metadata = state.value !== undefined && "metadata" in state.value ? state.value.metadata : undefined;
  const structured = state.case === "completed" ? state.value.structuredOutput : undefined;
  if (metadata === undefined && structured === undefined) return null;
  return (
    <details class="block">
      <summary>Metadata</summary>
      <Pre text={visibleJson(metadata)} />
      {structured !== undefined && <Pre text={visibleJson(structured)} />}
    </details>
  );
}

/** A value as indented JSON that is safe to show. */
const visibleJson = (value: unknown) => visibleLines(JSON.stringify(value ?? null, null, 2));

/** A file that a tool returned: pictures are shown, other files can be saved. The browser never opens one as a page. */
function AttachmentView({
  file: { url, mime, filename, size },
  sessionId,
  connection,
}: {
  file: FilePart;
  sessionId: string;
  connection: ConsoleConnection;
}) {
  const address = useSignal("");
  const problem = useSignal("");
  useEffect(() => {
    if (url.startsWith("data:")) {
      address.value = url;
      return;
    }
    let made = "";
    readWhole(connection, { sessionId, output: url }).then(
      (bytes) => {
        made = URL.createObjectURL(new Blob([bytes], { type: isPicture(mime) ? mime : "application/octet-stream" }));
        address.value = made;
      },
      (error: unknown) => {
        problem.value = String(error);
      },
    );
    return () => URL.revokeObjectURL(made);
  }, [url]);
  const name = visibleText(filename ?? "attachment");
  return (
    <figure class="attachment">
      {isPicture(mime) && address.value !== "" && <img src={address.value} alt={name} />}
      <figcaption>
        {address.value === "" ? (
          name
        ) : (
          <a href={address.value} download={filename ?? "attachment"}>
            {name}
          </a>
        )}{" "}
        <small>
          {visibleText(mime)}, {sizeOf(Number(size))} {problem}
        </small>
      </figcaption>
    </figure>
  );
}

const isPicture = (mime: string) => /^image\/(png|jpeg|gif|webp|avif|svg\+xml)$/.test(mime);
