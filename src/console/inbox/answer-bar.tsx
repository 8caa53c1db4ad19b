import { type Signal, useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { GrantScope, type Offer, Shown } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { savableOffers } from "../../view/need.ts";
import { countOf, momentOf } from "../../view/quantities.ts";
import { boundTo } from "../parts/bound.ts";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import { useArmed } from "../shell/armed.ts";
import { isTyping } from "../shell/keys.ts";
import { lazyPage } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { AnswerOutcome } from "./answer.ts";
import type { AskGroup } from "./ask-list.ts";
import { FormEnd, type FormProps, focusFirst } from "./form.tsx";
import { RejectForm } from "./reject-form.tsx";
import { needsPasskey, SendingState, useSending } from "./use-sending.tsx";

const EditForm = lazyPage(async () => (await import("./edit-form.tsx")).EditForm);

type Form = "none" | "always" | "reject" | "edit";

/** The answers: once with one press, the others through a form. All are inert until the card has been visible for a moment. */
export function AnswerBar({
  group,
  equal,
  armed,
  isWhole,
  isPartial,
  openAll,
  isLive,
  connection,
  onAnswered,
}: {
  group: AskGroup;
  /** A request of each other call that is equal to this one. */
  equal: readonly PermissionRequest[];
  armed: boolean;
  /** True once all of the request is on the page; before, nothing can be approved. */
  isWhole: boolean;
  /** True if a part of the request cannot be shown, and the page says so. */
  isPartial: boolean;
  /** Opens all that is folded. */
  openAll: () => void;
  /** False while the page may miss changes; then nothing can be approved. */
  isLive: boolean;
  connection: ConsoleConnection;
  /** Called with the report of an answer that the service has recorded. */
  onAnswered: (report: string, answer: AnswerOutcome) => void;
}) {
  const form = useSignal<Form>("none");
  const bar = useRef<HTMLDivElement>(null);
  const reason = useSignal("");
  const needs = group.open.flatMap(({ need }) => need ?? []);
  const needsReason = needs.some(({ reasonRequired }) => reasonRequired);
  const sending = useSending(connection, (report, answer) =>
    onAnswered(needs.length > 0 && answer.reply !== PermissionReply.REJECT ? "Sent: your vote" : report, answer),
  );
  const { isSending, send: sendTo } = sending;
  const offering = group.open.find((each) => savableOffers(each).length > 0);
  const hasOffers = offering !== undefined;
  const me = connection.server.person?.id;
  // A passkey signs one request at a time.
  const unsigned = group.open.find((each) => needsPasskey(each) && !each.votes.some(({ person }) => person?.id === me));
  const first = unsigned ?? group.open[0];
  // A form opens under the pointer: the second half of a double click approves nothing.
  const isOpenArmed = useArmed(form.value);
  const isReady = armed && !isSending.value;
  const canApprove = isReady && isOpenArmed && isWhole && isLive && (!needsReason || reason.value.trim() !== "");

  const send = async (answer: AnswerOutcome) => {
    if (first === undefined || !(answer.reply === PermissionReply.REJECT ? isReady : canApprove)) return;
    const target = answer.reply === PermissionReply.ALWAYS ? (offering ?? first) : first;
    const given = answer.reply === PermissionReply.REJECT ? answer : { ...answer, reason: reason.value };
    await sendTo(target, given, isWhole ? (isPartial ? Shown.PARTIAL : Shown.WHOLE) : Shown.UNKNOWN);
  };
  const once = () => send({ reply: PermissionReply.ONCE });
  const open = (wanted: Form) => {
    if (wanted === "always" ? canApprove : isReady) form.value = wanted;
  };
  const close = () => {
    form.value = "none";
  };

  // At once: what the page shows as ready must take a key.
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent) => {
      // In a narrow window the list hides the card; an invisible card takes no answer.
      if (!bar.current?.checkVisibility()) return;
      if (event.key === "Escape") close();
      if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || isTyping(event.target)) return;
      // While a form is open, only its own button answers.
      if (form.value !== "none") return;
      if (event.key === "o") void once();
      if (event.key === "a" && hasOffers) open("always");
      if (event.key === "r") open("reject");
      if (event.key === "e") open("edit");
      // The key that opens a form must not be typed into it.
      if ("oare".includes(event.key)) event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });

  if (!connection.may("approver", "admin")) {
    return (
      <p class="answer-bar hint">
        You are signed in as {connection.server.roles.join(", ")}. Only the role approver can answer.
      </p>
    );
  }
  return (
    <div ref={bar} class="answer-bar" aria-busy={isSending}>
      <SendingState sending={sending} />
      {!isLive && <p class="hint">You can approve again when the page is live.</p>}
      {armed && !isWhole && (
        <div class="sending">
          <p class="hint">
            You can approve this after you have seen all of it: open what is folded, and scroll to its end.
          </p>
          <button type="button" onClick={openAll}>
            Open all
          </button>
        </div>
      )}
      {equal.length > 0 && form.value !== "reject" && (
        <p class="hint">An approval is for this call only. {countOf(equal.length, "equal call")} will still wait.</p>
      )}
      {needsReason && (
        <label class="limit">
          <span>Reason to approve, for the record</span>
          <input maxLength={1024} {...boundTo(reason)} />
        </label>
      )}
      {form.value === "always" && (
        <OffersForm key={offering?.id} group={group} isReady={canApprove} send={send} back={close} />
      )}
      {form.value === "reject" && first !== undefined && (
        <RejectForm isReady={isReady} request={first} equal={equal} send={send} back={close} />
      )}
      {form.value === "edit" && (
        <EditForm group={group} connection={connection} isReady={canApprove} send={send} back={close} />
      )}
      {form.value === "none" && (
        <div class="answers">
          <button type="button" class="primary" aria-disabled={!canApprove} onClick={() => void once()}>
            Approve once <kbd>o</kbd>
          </button>
          <button
            type="button"
            aria-disabled={!canApprove || !hasOffers}
            title={hasOffers ? undefined : "You cannot approve this for later calls"}
            onClick={() => hasOffers && open("always")}
          >
            Always… <kbd>a</kbd>
          </button>
          <button type="button" aria-disabled={!isReady} onClick={() => open("edit")}>
            Edit… <kbd>e</kbd>
          </button>
          <button type="button" class="danger" aria-disabled={!isReady} onClick={() => open("reject")}>
            Reject… <kbd>r</kbd>
          </button>
        </div>
      )}
    </div>
  );
}

/** Time limits of a grant; 0 is none. */
const limits: readonly [hours: number, words: string][] = [
  [0, "no time limit"],
  [1, "1 hour"],
  [8, "8 hours"],
  [7 * 24, "7 days"],
];
/** Further calls that a grant may be limited to; 0: as offered. */
const counts = [0, 1, 5, 20];

/** The form that selects the grant to save with "always": what, where, and for how long. The narrowest is preselected. */
function OffersForm({ group, isReady, send, back }: FormProps & { group: AskGroup }) {
  const asking = group.open.filter((each) => savableOffers(each).length > 0);
  const [main, ...others] = asking;
  const asked = group.open.find((each) => !asking.includes(each));
  const what = useSignal(0);
  const where = useSignal<GrantScope>(GrantScope.SESSION);
  const hours = useSignal(0);
  const times = useSignal(0);
  if (main === undefined) return null;
  const choices = choicesOf(main.offers);
  const chosen = choices[what.value] ?? choices[0];
  const offer = chosen?.offers.find(({ scope }) => scope === where.value) ?? chosen?.offers[0];
  if (chosen === undefined || offer === undefined) return null;
  const submit = (event: Event) => {
    event.preventDefault();
    void send({ reply: PermissionReply.ALWAYS, offerId: offer.id, hours: hours.value, times: times.value });
  };
  return (
    <form class="answer-form" ref={focusFirst} onSubmit={submit}>
      <pre class="subject">{subjectOf(main)}</pre>
      <Choice
        legend="From now on, allow"
        name="what"
        options={choices.map(({ words }) => words)}
        chosen={what.value}
        choose={(index) => (what.value = index)}
      />
      <Choice
        legend="in"
        name="where"
        options={chosen.offers.map(({ scope }) => placeWords(scope, main))}
        chosen={chosen.offers.indexOf(offer)}
        choose={(index) => (where.value = chosen.offers[index]?.scope ?? GrantScope.SESSION)}
      />
      <div class="limits">
        <Limit label="with" chosen={hours} options={limits} />
        <Limit
          label="for"
          chosen={times}
          options={counts
            .filter((count) => offer.times === 0 || count < offer.times)
            .map((count) => [
              count,
              count + offer.times === 0 ? "any number of calls" : countOf(count || offer.times, "more call"),
            ])}
        />
      </div>
      <p class="hint saved">
        {visibleText(offer.text)}
        {times.value > 0 && `, at most ${countOf(times.value, "more call")}`}
        {limits.map(([value, words]) => value > 0 && value === hours.value && `, at most for ${words}`)}
        {offer.expires > 0 && ` (until ${momentOf(offer.expires)})`}.
        {others.length > 0 &&
          ` Also saved: ${others.map(({ offers }) => visibleText(offers[0]?.text ?? "")).join("; ")}.`}{" "}
        {asked !== undefined && ` Still asked each time: ${visibleText(subjectOf(asked))}.`} Rules that deny still
        apply. Revoke it under Policy.
      </p>
      <FormEnd back={back}>
        <button type="submit" class="primary" aria-disabled={!isReady}>
          Approve and remember
        </button>
      </FormEnd>
    </form>
  );
}

function Limit({
  label,
  chosen,
  options,
}: {
  label: string;
  chosen: Signal<number>;
  options: readonly [value: number, words: string][];
}) {
  return (
    <label class="limit">
      <span>{label}</span>
      <select value={chosen} onChange={({ currentTarget }) => (chosen.value = Number(currentTarget.value))}>
        {options.map(([value, words]) => (
          <option key={value} value={value}>
            {words}
          </option>
        ))}
      </select>
    </label>
  );
}

function Choice({
  legend,
  name,
  options,
  chosen,
  choose,
}: {
  legend: string;
  name: string;
  options: readonly string[];
  chosen: number;
  choose: (index: number) => void;
}) {
  return (
    <fieldset class="choice">
      <legend>{legend}</legend>
      {options.map((words, i) => (
        <label key={words}>
          <input type="radio" name={name} checked={i === chosen} onChange={() => choose(i)} />
          <span>{words}</span>
        </label>
      ))}
    </fieldset>
  );
}

/** Offers that cover the same, one per scope. */
interface OfferChoice {
  words: string;
  offers: Offer[];
}

function choicesOf(offers: readonly Offer[]): OfferChoice[] {
  return [...Map.groupBy(offers, matchWords)].map(([words, alike]) => ({ words, offers: alike }));
}

function matchWords({ match, also }: Offer): string {
  const all = [match, ...also].flatMap((each) => each?.match ?? []);
  const prefixes = all.flatMap(({ case: kind, value }) =>
    kind === "prefix" ? `“${visibleText(value.words.join(" "))}”` : [],
  );
  if (prefixes.length > 0) return `commands that begin with ${prefixes.join(" or ")}`;
  const wildcards = all.flatMap(({ case: kind, value }) => (kind === "wildcard" ? `“${visibleText(value)}”` : []));
  return wildcards.length > 0 ? `everything that fits ${wildcards.join(" or ")}` : "exactly this";
}

function placeWords(scope: GrantScope, { agent }: PermissionRequest): string {
  if (scope === GrantScope.AGENT) return `agent ${visibleText(agent)}`;
  return scope === GrantScope.PROJECT ? "this workspace" : "this session";
}

/** The text that the grant is about; it stays in sight while the form covers the card. */
function subjectOf({ preview, display }: PermissionRequest): string {
  return visibleLines(preview?.command || display.join("\n"));
}
