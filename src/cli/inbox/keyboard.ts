import type { Offer } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { savableOffers } from "../../view/need.ts";
import { isRequestCut } from "../../view/view-lines.ts";
import type { ReplyAnswer } from "../connection/send-reply.ts";
import type { Key } from "../terminal/full-screen.ts";
import { beginForm, type FormMode, pressInForm, typeInto } from "./answer-form.ts";
import { type Card, type Cards, isOpen } from "./cards.ts";

/** Decides the meaning of the next key. */
export type Mode =
  | { kind: "cards" }
  | { kind: "offers"; card: Card; choices: readonly Choice[] }
  | { kind: "advice"; card: Card; text: string; scope: RejectReach }
  | { kind: "filter"; before: string }
  | FormMode;

/** Open requests that one reject ends: of this call, of it and equal ones, or all of its session with descendants or of its agent. */
export type RejectReach = "call" | "equal" | "session" | "agent";

type Advice = Extract<Mode, { kind: "advice" }>;

/** An offer of one of a card's requests, for "always". */
export interface Choice {
  ask: PermissionRequest;
  offer: Offer;
}

/** Effects of keys. */
export interface Actions {
  /** Sends an answer to each of these requests. */
  answer(asks: readonly PermissionRequest[], answer: ReplyAnswer): void;
  /** Rejects all open requests of a session or of an agent. */
  rejectAll(scope: { sessionId: string } | { agent: string }, message: string): void;
  /** Lets the person edit the arguments of the card's call. */
  edit(card: Card): void;
  /** Scrolls the card by pages. */
  turnPage(by: number): void;
  /** Loads what is shown only in part. */
  showWhole(card: Card): void;
  /** Checks if all of a card was on the screen. */
  isWhole(card: Card): boolean;
  say(notice: string): void;
  leave(): void;
}

/** The keys of an inbox. */
export interface Keyboard {
  mode(): Mode;
  press(key: Key): void;
}

/** Turns keys into answers to the selected card; a card that has just appeared cannot be approved yet. */
export function createKeyboard(cards: Cards, actions: Actions): Keyboard {
  let mode: Mode = cardsMode;

  /** Leaves a mode whose card has changed: offers belong to the card as it was shown, advice to its open call. */
  function currentMode(): Mode {
    const card = cards.selected();
    const holds =
      mode.kind === "offers"
        ? mode.card === card
        : mode.kind === "filter" || (mode.kind !== "cards" && mode.card.key === card?.key && isOpen(card));
    if (!holds) mode = cardsMode;
    return mode;
  }

  function approve(asks: readonly PermissionRequest[], answer: ReplyAnswer): void {
    if (!wasRead(cards, actions)) return;
    mode = cardsMode;
    actions.answer(asks, answer);
  }

  /** Approves the card once, or opens the form of its questions: no single key answers those. */
  function once(card: Card): void {
    const form = beginForm(card);
    if (form === undefined) approve(card.asks, { reply: PermissionReply.ONCE });
    else if (wasRead(cards, actions)) mode = form;
  }

  function pressOnForm(form: FormMode, key: Key): void {
    const next = pressInForm(form, key);
    if (next.kind === "problem") actions.say(next.problem);
    else if (next.kind === "page") actions.turnPage(next.by);
    else if (next.kind !== "done") mode = next;
    else {
      mode = cardsMode;
      if (next.others.length > 0) actions.answer(next.others, { reply: PermissionReply.ONCE });
      actions.answer([form.ask], { reply: PermissionReply.ONCE, answers: next.answers });
    }
  }

  function save({ ask, offer }: Choice): void {
    approve([ask], { reply: PermissionReply.ALWAYS, offerId: offer.id });
  }

  function always(card: Card): void {
    const choices = card.asks.flatMap((ask) => savableOffers(ask).map((offer) => ({ ask, offer }))).slice(0, 9);
    const [only] = choices;
    if (choices.length > 1) mode = { kind: "offers", card, choices };
    else if (only) save(only);
    else actions.say("this request has no offer to save: allow it once, or reject it");
  }

  const onCards = new Map<string, () => void>([
    ["q", actions.leave],
    ["j", () => cards.move(1)],
    ["down", () => cards.move(1)],
    ["k", () => cards.move(-1)],
    ["up", () => cards.move(-1)],
    [
      "/",
      () => {
        mode = { kind: "filter", before: cards.filter() };
      },
    ],
    ["space", () => actions.turnPage(1)],
    ["pagedown", () => actions.turnPage(1)],
    ["b", () => actions.turnPage(-1)],
    ["pageup", () => actions.turnPage(-1)],
  ]);
  const onOpenCard = new Map<string, (card: Card) => void>([
    ["o", once],
    ["a", always],
    ["e", (card) => (beginForm(card) ? actions.say("a question is answered, not edited: o") : actions.edit(card))],
    ["w", actions.showWhole],
    [
      "r",
      (card) => {
        mode = { kind: "advice", card, text: "", scope: "call" };
      },
    ],
  ]);

  function pressOnCards({ name }: Key): void {
    const card = cards.selected();
    onCards.get(name)?.();
    if (card && isOpen(card)) onOpenCard.get(name)?.(card);
  }

  function pressOnOffers(choices: readonly Choice[], { name }: Key): void {
    const choice = choices[Number(name) - 1];
    if (choice) save(choice);
    if (name === "escape") mode = cardsMode;
  }

  function pressOnAdvice(advice: Advice, key: Key): void {
    const isSent = key.name === "return" || key.name === "enter";
    if (isSent) reject(cards, actions, advice);
    if (isSent || key.name === "escape") mode = cardsMode;
    else if (key.name === "tab") mode = { ...advice, scope: scopeAfter(cards, advice) };
    else mode = { ...advice, text: typeInto(advice.text, key) };
  }

  return {
    mode: currentMode,
    press(key) {
      const now = currentMode();
      if (key.ctrl && key.name === "c") actions.leave();
      else if (now.kind === "offers") pressOnOffers(now.choices, key);
      else if (now.kind === "advice") pressOnAdvice(now, key);
      else if (now.kind === "filter") mode = endsFilter(cards, now.before, key) ? cardsMode : now;
      else if (now.kind === "form") pressOnForm(now, key);
      else if (!key.ctrl) pressOnCards(key);
    },
  };
}

/** Sends a reject. One ends a call, and withdraws the card's other requests. */
function reject(cards: Cards, actions: Pick<Actions, "answer" | "rejectAll">, { text, scope }: Advice): void {
  const card = cards.selected();
  if (!card) return;
  const message = text.trim();
  const [{ sessionId, agent }] = card.asks;
  const ended = [card, ...(scope === "equal" ? cards.equalTo(card) : [])].map(({ asks }) => asks[0]);
  if (scope === "session") actions.rejectAll({ sessionId }, message);
  else if (scope === "agent") actions.rejectAll({ agent }, message);
  else actions.answer(ended, { reply: PermissionReply.REJECT, message });
}

/** The next of the choices of a reject, in a circle. */
function scopeAfter(cards: Cards, { card, scope }: Advice): RejectReach {
  if (beginForm(card)) return "call";
  const hasEqual = cards.equalTo(cards.selected() ?? card).length > 0;
  const scopes: RejectReach[] = ["call", ...(hasEqual ? (["equal"] as const) : []), "session"];
  if (card.asks[0].agent !== "") scopes.push("agent");
  return scopes[(scopes.indexOf(scope) + 1) % scopes.length] ?? "call";
}

/** Changes the filter as it is typed; returns true if the key ends that. */
function endsFilter(cards: Cards, before: string, key: Key): boolean {
  if (key.name === "escape") cards.filter(before);
  const isEnd = ["escape", "return", "enter"].includes(key.name);
  if (!isEnd) cards.filter(typeInto(cards.filter(), key));
  return isEnd;
}

/** Checks that the selected card was on the screen, whole and for a moment. */
function wasRead(cards: Cards, actions: Pick<Actions, "isWhole" | "say">): boolean {
  const card = cards.selected();
  if (cards.inertMs() > 0) actions.say("it has just appeared: read it, then press again");
  else if (card?.asks.some(isRequestCut)) actions.say("only a part of it is shown: w loads the whole");
  else if (card && !actions.isWhole(card)) actions.say("read it to its end first: space");
  else return true;
  return false;
}

const cardsMode: Mode = { kind: "cards" };
