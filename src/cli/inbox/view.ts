import type { SuggestedRule } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { savableOffers } from "../../view/need.ts";
import { behindWords } from "../../view/people.ts";
import { asksQuestions } from "../../view/questions.ts";
import { requesterWords } from "../../view/requester.ts";
import { riskKinds } from "../../view/risks.ts";
import { hasSameView } from "../../view/view-lines.ts";
import { questionLines } from "../question/parse-answer.ts";
import { clipRow, wrapRows } from "../terminal/full-screen.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";
import { askLines, askSummary } from "../view/ask-view.ts";
import { durationOf } from "../view/words.ts";
import { currentAnswer, type FormMode } from "./answer-form.ts";
import { type Card, endWords, isOpen, isShownWhole } from "./cards.ts";
import type { Mode, RejectReach } from "./keyboard.ts";

/** State of the inbox to draw. */
export interface InboxView {
  /** The open cards of all rows, also of those that the filter hides. */
  openCount: number;
  /** The cards that the filter finds; equal ones share a row. */
  rows: readonly (readonly Card[])[];
  filter: string;
  selected: Card | undefined;
  mode: Mode;
  /** The selected card can be approved. */
  isReady: boolean;
  /** The last message; empty if none. */
  notice: string;
  /** Reason why the view is not live; empty if it is. */
  trouble: string;
  url: string;
  /** Title and id of a session. */
  nameOf(sessionId: string): string;
  /** Returns the rule that could answer a request, once it is known. */
  ruleOf(ask: PermissionRequest): SuggestedRule | undefined;
  /** First visible row of the selected card. */
  scroll: number;
  now: number;
}

/** A whole screen. */
export interface InboxRows {
  rows: string[];
  /** First visible row of the card, and the number of visible rows. */
  scroll: number;
  page: number;
  /** True if the last row of the card's requests is visible. */
  isAtEnd: boolean;
}

/** Draws an inbox: the list, below it the selected card, at the end the keys. */
export function createInboxView(paint: Paint) {
  // A card may be thousands of lines long, and it is drawn every second.
  const drawn = new WeakMap<Card, { columns: number; rows: string[] }>();

  function bodyOf(card: Card, columns: number): string[] {
    const known = drawn.get(card);
    if (known?.columns === columns) return known.rows;
    const rows = card.asks
      .flatMap((ask, at) => {
        // Requests of one plan show the same call.
        const isViewShown = card.asks.slice(0, at).some((other) => hasSameView(ask, other));
        const texts = card.texts.get(ask) ?? new Map();
        return [...askLines({ ...ask, expires: 0 }, paint, { now: 0, isViewShown, texts }), ""];
      })
      .flatMap((line) => wrapRows(line, columns));
    drawn.set(card, { columns, rows });
    return rows;
  }

  function cardRows(view: InboxView, columns: number): string[] {
    const { selected } = view;
    if (!selected) return [];
    return [
      ...bodyOf(selected, columns),
      ...[...whoLines(view, selected, paint), ...ruleLines(view, selected, paint)].flatMap((line) =>
        wrapRows(line, columns),
      ),
    ];
  }

  function formRows({ ask, at }: FormMode, columns: number): string[] {
    const lines = ask.question.slice(at, at + 1).flatMap((question) => questionLines(question, at, paint));
    return lines.flatMap((line) => wrapRows(line, columns));
  }

  return (view: InboxView, size: { columns: number; rows: number }): InboxRows => {
    const { columns } = size;
    const head = [clipRow(headLine(view, paint), columns)];
    const list = listRows(view, Math.max(1, Math.floor(size.rows / 3)), paint).map((row) => clipRow(row, columns));
    const foot = footLines(view, paint).flatMap((line) => wrapRows(line, columns));
    const rule = paint("dim", "─".repeat(columns));
    const page = Math.max(1, size.rows - head.length - list.length - foot.length - 3);
    const { selected } = view;
    const whole = view.mode.kind === "form" ? formRows(view.mode, columns) : cardRows(view, columns);
    const scroll = Math.max(0, Math.min(view.scroll, whole.length - page));
    const visible = whole.slice(scroll, scroll + page);
    const below = whole.length - scroll - visible.length;
    const more = below > 0 ? paint("yellow", `… ${below} more below: space`) : "";
    const padding = Array.from({ length: page - visible.length }, () => "");
    const rows = [...head, ...list, rule, ...visible, ...padding, clipRow(more, columns), rule, ...foot];
    const requestRows = selected ? bodyOf(selected, columns).length : 0;
    const isAtEnd = view.mode.kind !== "form" && scroll + page >= requestRows - 1;
    return { rows: rows.slice(0, size.rows), scroll, page, isAtEnd };
  };
}

function headLine({ openCount: open, rows, filter, url, trouble }: InboxView, paint: Paint): string {
  const found = filter === "" ? "" : `, ${rows.flat().filter(isOpen).length} with ${terminalLine(filter)}`;
  const state =
    trouble === "" ? paint("dim", `${url}  live`) : paint("red", `${url}  not live: ${terminalLine(trouble)}`);
  return `${paint("bold", "toolgate inbox")}  ${open === 0 ? "nothing waits" : `${open} wait${found}`}  ${state}`;
}

/** The part of the list around the selected card. */
function listRows(view: InboxView, height: number, paint: Paint): string[] {
  const { rows, selected, filter } = view;
  if (rows.length === 0)
    return [
      paint("dim", filter === "" ? "  what agents ask for comes up here" : "  no request has all of these words"),
    ];
  const at = selected ? rows.findIndex((row) => row.includes(selected)) : 0;
  const first = Math.max(0, Math.min(at - Math.floor(height / 2), rows.length - height));
  return rows.slice(first, first + height).flatMap((row) => {
    const card = row.find((card) => card === selected) ?? row[0];
    return card ? cardRow(card, row.length, view, paint) : [];
  });
}

function cardRow(card: Card, count: number, { selected, nameOf, now }: InboxView, paint: Paint): string {
  const [ask] = card.asks;
  const mark = card === selected ? paint("bold", "▸") : " ";
  if (!isOpen(card)) {
    const approved = card.ends.every((end) => end.approved);
    const how = paint(approved ? "green" : "red", `${approved ? "✓" : "✗"} ${endWords(card)}`);
    return `${mark} ${how}  ${paint("dim", whatOf(card))}`;
  }
  const left = ask.expires > 0 ? durationOf(ask.expires - now) : "";
  const risks = riskKinds(card.asks).map(({ words }) => words);
  const risk = risks.length > 0 ? `${paint("red", risks.join(", "))}  ` : "";
  const times = count > 1 ? `${paint("bold", `×${count}`)}  ` : "";
  const what = card === selected ? paint("bold", whatOf(card)) : whatOf(card);
  return `${mark} ${left.padStart(7)}  ${times}${risk}${paint("cyan", requesterWords(ask, terminalLine))}  ${what}  ${paint("dim", nameOf(ask.sessionId))}`;
}

/** A card's requests on one line. */
function whatOf({ asks }: Card): string {
  return asks.map(askSummary).join(" + ");
}

function whoLines({ nameOf, now }: InboxView, { asks, ends }: Card, paint: Paint): string[] {
  const [first] = asks;
  const { sessionId, ancestry, tool, expires } = first;
  const field = (name: string, value: string) => `  ${paint("dim", name.padEnd(9))}${value}`;
  const parents = ancestry.slice(0, -1).map(nameOf);
  return [
    field("agent", `${requesterWords(first, terminalLine)}${behindWords(first, terminalLine)}`),
    field("session", nameOf(sessionId)),
    ...(parents.length > 0 ? [field("below", parents.join(" › "))] : []),
    ...(tool ? [field("call", terminalLine(tool.callId))] : []),
    ...(expires > 0 ? [field("left", `${durationOf(expires - now)}, then it is refused`)] : []),
    ...ends.map(({ words }) => field("so far", words)),
    "",
  ];
}

/** The rule that people could copy: they approved the same again and again. */
function ruleLines({ ruleOf }: InboxView, card: Card, paint: Paint): string[] {
  const rule = isOpen(card) ? ruleOf(card.asks[0]) : undefined;
  if (!rule) return [];
  const { approvals, days, toml } = rule;
  const words = `approved ${approvals} times on ${days} days, never rejected: a rule could answer it (toolgate suggest)`;
  return [
    `  ${paint("yellow", words)}`,
    ...toml
      .trimEnd()
      .split("\n")
      .map((line) => `    ${terminalLine(line)}`),
    "",
  ];
}

function footLines({ selected, rows, filter, mode, isReady, notice }: InboxView, paint: Paint): string[] {
  const key = (letter: string, word: string) => `${paint("bold", letter)} ${word}`;
  const notices = notice === "" ? [] : [paint("yellow", terminalSafe(notice))];
  if (mode.kind === "advice") {
    const count = rows.find((row) => selected && row.includes(selected))?.length ?? 1;
    const scope = asksQuestions(mode.card.asks[0]) ? "" : ` ${scopeWords(mode, count)}, Tab: others,`;
    const keys = `Enter rejects${scope || ","} Esc goes back`;
    return [...notices, `advice for the agent (${keys}):`, `› ${terminalLine(mode.text)}▏`];
  }
  if (mode.kind === "filter") {
    const words = "words, session:… agent:… tool:… risk:…; Enter keeps it, Esc goes back";
    return [...notices, `show only (${words}):`, `› ${terminalLine(filter)}▏`];
  }
  if (mode.kind === "form") return [...notices, ...formFoot(mode, paint)];
  if (mode.kind === "offers") {
    const offers = mode.choices.map(({ ask, offer }, i) =>
      key(`${i + 1}`, `${terminalLine(ask.permission)}: ${terminalLine(offer.text)}`),
    );
    return [...notices, "allow from now on, without asking:", ...offers, key("Esc", "back")];
  }
  const move = [key("j k", "move"), key("space b", "page"), key("/", "filter"), key("q", "quit")];
  if (!selected || !isOpen(selected)) return [...notices, move.join("   ")];
  const isQuestion = selected.asks.some(asksQuestions);
  const once = key("o", isQuestion ? "answer" : "once");
  const hasOffer = selected.asks.some((ask) => savableOffers(ask).length > 0);
  const approve = isReady ? [once, ...(hasOffer ? [key("a", "always")] : [])] : [paint("dim", "…")];
  const whole = isShownWhole(selected) ? [] : [key("w", "whole request")];
  const others = isQuestion ? [key("r", "dismiss")] : [key("r", "reject"), key("e", "edit")];
  return [...notices, [...approve, ...whole, ...others, ...move].join("   ")];
}

function scopeWords({ card, scope }: { card: Card; scope: RejectReach }, count: number): string {
  const words: Record<RejectReach, string> = {
    call: "this call",
    equal: `all ${count} equal ones`,
    session: "all of this session",
    agent: `all of agent ${terminalLine(card.asks[0].agent)}`,
  };
  return words[scope];
}

function waysOf({ ask, at }: FormMode): string {
  const { options = [], custom = true } = ask.question[at] ?? {};
  if (options.length === 0) return "your own words";
  return custom ? "a number, a label or your own words" : "a number or a label";
}

/** The answer that is being typed, and the value that it stands for. */
function formFoot(form: FormMode, paint: Paint): string[] {
  const { text, parsed } = currentAnswer(form);
  const { length } = form.ask.question;
  const words = "problem" in parsed ? paint("yellow", parsed.problem) : parsed.values.map(terminalLine).join(", ");
  const then = form.at + 1 < length ? "next question" : "send";
  return [
    `${paint("dim", `${form.at + 1} of ${length}: ${waysOf(form)}; empty: no answer. Enter: ${then}, Esc: back`)}`,
    `› ${terminalLine(text)}▏  ${paint("dim", "→")} ${words || paint("dim", "no answer")}`,
  ];
}
