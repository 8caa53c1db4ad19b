import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { repetitionWords } from "../../view/asks.ts";
import { behalfWords, needWords, voteWords } from "../../view/need.ts";
import { behindWords } from "../../view/people.ts";
import { timeLeft } from "../../view/quantities.ts";
import { asksQuestions } from "../../view/questions.ts";
import { requesterWords } from "../../view/requester.ts";
import { CopyButton } from "../parts/copy-command.tsx";
import { Pre } from "../parts/long-text.tsx";
import type { SessionNames } from "../parts/session-names.ts";
import { isApproved, settledText } from "../parts/settled.ts";
import { shortId } from "../parts/short-id.tsx";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import { useArmed } from "../shell/armed.ts";
import { useLoaded } from "../shell/load.ts";
import { useNow } from "../shell/now.ts";
import { pathOf } from "../shell/route.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { AnswerOutcome } from "./answer.ts";
import { AnswerBar } from "./answer-bar.tsx";
import { AnswerForm } from "./answer-form.tsx";
import type { AskFeed } from "./ask-feed.ts";
import { AskIds, headingOf } from "./ask-head.tsx";
import type { AskGroup, InboxAsk } from "./ask-list.ts";
import { AskPreview } from "./ask-preview.tsx";
import { requestLine } from "./ask-row.tsx";
import { AskedQuestions } from "./asked-questions.tsx";
import { kindsOf, PermissionMark } from "./permission-mark.tsx";
import { Risks } from "./risks.tsx";

/** A waiting call: its agent, request, reasons, time left, and the answers. */
export function AskCard({
  group,
  equal,
  connection,
  names,
  drafts,
  isAlone,
  isLive,
  onAnswered,
}: {
  group: AskGroup;
  /** A request of each other call that is equal to this one. */
  equal: readonly PermissionRequest[];
  connection: ConsoleConnection;
  names: SessionNames;
  drafts: AskFeed["drafts"];
  /** True if the card was selected: on a small screen it is visible only then. */
  isAlone: boolean;
  isLive: boolean;
  onAnswered: (report: string, answer: AnswerOutcome) => void;
}) {
  const armed = useArmed(`${isAlone} ${group.open.map(({ id, digest }) => `${id} ${digest}`).join(" ")}`);
  const card = useRef<HTMLElement>(null);
  // The pane is as far scrolled as the card before, whose end is no end of this one.
  useLayoutEffect(() => card.current?.scrollIntoView(), []);
  const form = group.asks.find(({ request }) => asksQuestions(request));
  const shown = form ?? group.asks[0];
  if (shown === undefined) return null;
  const { request } = shown;
  // The way out of the workspace says less than what is done there.
  const inside = group.asks.find(({ request }) => request.permission !== "external_directory") ?? shown;
  const [open] = group.open;
  return (
    <article ref={card} class="ask-card" aria-labelledby="ask-title">
      <a class="back" href="#/inbox">
        ← Inbox
      </a>
      <Risks requests={group.asks.map(({ request }) => request)} />
      <header class="ask-head">
        <p class="ask-kinds">
          {kindsOf(group.asks).map((kind) => (
            <PermissionMark key={kind} kind={kind} />
          ))}
          {open !== undefined && <TimeLeft request={open} />}
        </p>
        <div class="ask-title">
          <h1 id="ask-title">
            <bdi>{requesterWords(request, visibleText)}</bdi>
            {behindWords(request, visibleText)} {headingOf(inside.request, "asks")}
          </h1>
          <p class="ask-what mono" aria-hidden="true" data-what={requestLine(group)} />
        </div>
        <Who request={request} names={names} />
        <AgentDescription group={group} />
      </header>
      <Changed group={group} />
      <Needed group={group} />
      <Warnings group={group} />
      {form === undefined ? (
        <Approval {...{ group, equal, request, armed, isLive, connection, onAnswered }} />
      ) : (
        <Questions {...{ group, form, drafts, armed, isLive, connection, onAnswered }} />
      )}
    </article>
  );
}

interface AnswerProps {
  group: AskGroup;
  armed: boolean;
  isLive: boolean;
  connection: ConsoleConnection;
  onAnswered: (report: string, answer: AnswerOutcome) => void;
}

/** The request, its reasons and the answers that approve or refuse it. */
function Approval({
  request,
  ...props
}: AnswerProps & { request: PermissionRequest; equal: readonly PermissionRequest[] }) {
  const { group, connection } = props;
  // The card's requests as they are shown: with another one there is more to see.
  const all = group.asks.map(({ request }) => request);
  const shown = all.map(({ id, digest }) => `${id} ${digest}`).join(" ");
  const whole = useSignal("");
  const opened = useSignal("");
  const unread = useSignal<readonly string[]>([]);
  const [open] = group.open;
  return (
    <>
      <AskPreview
        key={shown}
        requests={all}
        connection={connection}
        isOpen={opened.value === shown}
        onWhole={() => (whole.value = shown)}
        onUnread={(part, isUnread) => {
          const others = unread.peek().filter((each) => each !== part);
          unread.value = isUnread ? [...others, part] : others;
        }}
      />
      {open !== undefined && <SuggestedRuleNote key={open.id} permissionId={open.id} connection={connection} />}
      <AskIds request={request} />
      {open === undefined ? (
        <Settlement group={group} />
      ) : (
        <AnswerBar
          key={open.digest}
          {...props}
          isWhole={whole.value === shown}
          isPartial={unread.value.length > 0}
          openAll={() => (opened.value = shown)}
        />
      )}
    </>
  );
}

/** The questions of a call with the form that answers them; its answer also lets a repeated call go on. */
function Questions({
  form: { request, settled },
  group,
  ...props
}: AnswerProps & { form: InboxAsk; drafts: AskFeed["drafts"] }) {
  return (
    <>
      {settled === undefined ? (
        <AnswerForm key={request.digest} request={request} {...props}>
          <AskIds request={request} />
        </AnswerForm>
      ) : (
        <>
          <AskedQuestions request={request} settled={settled} />
          <AskIds request={request} />
          <Settlement group={group} />
        </>
      )}
    </>
  );
}

function Who({ request: { ancestry, sessionId }, names }: { request: PermissionRequest; names: SessionNames }) {
  const chain = ancestry.length > 0 ? ancestry : [sessionId];
  return (
    <p class="ask-who">
      {chain.map((id, i) => (
        <span key={id}>
          {i > 0 && <span> › </span>}
          <a href={`#${pathOf("sessions", id)}`}>
            <bdi>{names.of(id) === id ? shortId(id) : names.of(id)}</bdi>
          </a>
        </span>
      ))}
    </p>
  );
}

/** The agent's own description of the call, which is not verified. */
function AgentDescription({ group: { asks } }: { group: AskGroup }) {
  const claim = asks.map(({ request }) => request.metadata?.description).find((text) => text !== undefined);
  if (typeof claim !== "string" || claim === "") return null;
  return (
    <p class="claim">
      Agent’s description (unverified): <q>{visibleText(claim)}</q>
    </p>
  );
}

/** The reason why the call is asked for again. */
function Changed({ group: { asks } }: { group: AskGroup }) {
  const reasons = new Set(asks.flatMap(({ request: { changed } }) => (changed === "" ? [] : changed)));
  if (reasons.size === 0) return null;
  return <p class="warning">Asked again: {[...reasons].map(visibleText).join("; ")}</p>;
}

/** The number of approvals, those whom the call waits for, and the votes. */
function Needed({ group: { open } }: { group: AskGroup }) {
  const lines = new Set(
    open.flatMap((request) =>
      [needWords(request) ?? [], request.votes.map(voteWords), behalfWords(request) ?? []].flat(),
    ),
  );
  if (lines.size === 0) return null;
  return (
    <div class="needed" role="status">
      {[...lines].map((line) => (
        <p key={line}>{visibleText(line)}</p>
      ))}
    </div>
  );
}

function Warnings({ group: { asks } }: { group: AskGroup }) {
  const repeated = asks.map(({ request }) => repetitionWords(request)).filter((words) => words !== "");
  const warnings = new Set([...asks.flatMap(({ request }) => request.warnings), ...repeated]);
  if (warnings.size === 0) return null;
  return (
    <div class="warning" role="note">
      <b>Look closely</b>
      <ul>
        {[...warnings].map((warning) => (
          <li key={warning}>{visibleText(warning)}</li>
        ))}
      </ul>
    </div>
  );
}

function TimeLeft({ request: { created, expires } }: { request: PermissionRequest }) {
  const left = expires - useNow();
  const share = Math.max(0, Math.min(1, left / Math.max(1, expires - created)));
  return (
    <span class={left < 60_000 ? "time urgent" : "time"}>
      <svg class="ring" viewBox="0 0 20 20" aria-hidden="true">
        <circle cx="10" cy="10" r="8" />
        <circle class="left" cx="10" cy="10" r="8" pathLength={1} stroke-dasharray={`${share} 1`} />
      </svg>
      {timeLeft(left)}
    </span>
  );
}

function Settlement({ group: { asks } }: { group: AskGroup }) {
  const settled = asks.find(({ settled }) => settled !== "unseen" && settled?.by)?.settled ?? asks[0]?.settled;
  if (settled === undefined) return null;
  return (
    <p class="farewell" role="status" data-approved={isApproved(settled)}>
      {settledText(settled)}
    </p>
  );
}

/** The rule that would have answered a request which people approved again and again; nothing for any other. */
function SuggestedRuleNote({ permissionId, connection }: { permissionId: string; connection: ConsoleConnection }) {
  // Without it the card has all that an answer needs.
  const { value: found } = useLoaded(
    async (signal) => (await connection.permissions.suggestRules({ permissionId }, { signal })).rules[0],
    [permissionId],
  );
  if (found === undefined) return null;
  const { approvals, days, toml } = found;
  return (
    <details class="block">
      <summary>
        Approved {approvals} times on {days} days, never rejected: a rule could answer it
      </summary>
      <Pre text={visibleLines(toml)} look="long-text" />
      <p class="hint">
        Put it into <code>toolgate.toml</code>, or try it first under <a href="#/policy/try">Policy → Try rules</a>.{" "}
        <CopyButton text={toml} what="the rule" />
      </p>
    </details>
  );
}
