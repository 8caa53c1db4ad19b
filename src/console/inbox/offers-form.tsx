import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { GrantScope, type Offer } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { momentOf } from "../../view/quantities.ts";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import type { AskGroup } from "./ask-list.ts";
import { FormEnd, type FormProps } from "./form.tsx";

const hourMs = 3_600_000;

/** Time limits of a grant; 0 is none. */
const limits: readonly [hours: number, words: string][] = [
  [0, "no time limit"],
  [1, "1 hour"],
  [8, "8 hours"],
  [7 * 24, "7 days"],
];

/** The form that selects the grant to save with "always": what, where, and for how long. The narrowest is preselected. */
export function OffersForm({ group, isReady, send, back }: FormProps & { group: AskGroup }) {
  const asking = group.open.filter(({ offers }) => offers.length > 0);
  const [main, ...others] = asking;
  const what = useSignal(0);
  const where = useSignal<GrantScope>(GrantScope.SESSION);
  const hours = useSignal(0);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => form.current?.querySelector("input")?.focus(), []);
  if (main === undefined) return null;
  const choices = choicesOf(main.offers);
  const chosen = choices[what.value] ?? choices[0];
  const offer = chosen?.offers.find(({ scope }) => scope === where.value) ?? chosen?.offers[0];
  if (chosen === undefined || offer === undefined) return null;
  const submit = (event: Event) => {
    event.preventDefault();
    const expires = hours.value === 0 ? 0 : Date.now() + hours.value * hourMs;
    void send({ reply: PermissionReply.ALWAYS, offerId: offer.id, expires });
  };
  return (
    <form class="answer-form" ref={form} onSubmit={submit}>
      <pre class="subject">{subjectOf(main)}</pre>
      <Choice
        legend="From now on, allow"
        name="what"
        options={choices.map(({ words }) => words)}
        chosen={what.value}
        choose={(index) => {
          what.value = index;
        }}
      />
      <Choice
        legend="in"
        name="where"
        options={chosen.offers.map(({ scope }) => placeWords(scope, main))}
        chosen={chosen.offers.indexOf(offer)}
        choose={(index) => {
          where.value = chosen.offers[index]?.scope ?? GrantScope.SESSION;
        }}
      />
      <label class="limit">
        <span>with</span>
        <select
          value={hours}
          onChange={({ currentTarget }) => {
            hours.value = Number(currentTarget.value);
          }}
        >
          {limits.map(([count, words]) => (
            <option key={count} value={count}>
              {words}
            </option>
          ))}
        </select>
      </label>
      <p class="hint saved">
        {visibleText(offer.text)}
        {hours.value > 0 && `, at most until ${momentOf(Date.now() + hours.value * hourMs)}`}
        {offer.expires > 0 && ` (until ${momentOf(offer.expires)})`}.
        {others.length > 0 &&
          ` Also saved: ${others.map(({ offers }) => visibleText(offers[0]?.text ?? "")).join("; ")}.`}{" "}
        Rules that deny still apply. You can revoke this under Policy.
      </p>
      <FormEnd back={back}>
        <button type="submit" class="primary" aria-disabled={!isReady}>
          Approve and remember
        </button>
      </FormEnd>
    </form>
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
  const choices = new Map<string, OfferChoice>();
  for (const offer of offers) {
    const words = matchWords(offer);
    const choice = choices.get(words) ?? { words, offers: [] };
    choices.set(words, choice);
    choice.offers.push(offer);
  }
  return [...choices.values()];
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
