import { PermissionOutcome, type PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { riskWords } from "../core/risk-words.ts";
import { visible, visibleLine } from "../core/visible.ts";
import { needWords } from "../view/need.ts";
import { viewLines } from "../view/view-lines.ts";
import type { ChannelContent, Notice } from "./ports.ts";
import { riskNameOf } from "./routing.ts";

/** Maximum size of the texts of a request in a message: what is longer is read behind the link. */
const maxTextBytes = 12_288;

/** Returns the JSON of a notice for programs. */
export function eventOf(notice: Notice, content: ChannelContent, now: number): object {
  const { url } = notice;
  if (notice.phase === "test") return { type: "channel.test", timestamp: isoOf(now), data: { url } };
  const { request } = notice;
  const base = { permission_id: request.id, expires: isoOf(request.expires), url };
  const ids = { digest: request.digest, session_id: request.sessionId };
  if (notice.phase === "settled") {
    const { settled } = notice;
    const [outcome] = outcomeOf(settled);
    const by = content === "none" ? {} : { ...ids, outcome, by: visibleLine(deciderOf(settled)) };
    return { type: "permission.settled", timestamp: isoOf(settled.time), data: { ...base, ...by } };
  }
  const data = { ...base, ...(content !== "none" && { ...ids, ...factsOf(request) }), ...textsOf(request, content) };
  return { type: "permission.requested", timestamp: isoOf(request.created), data };
}

function factsOf(request: PermissionRequest): object {
  const { agent, permission, risks, requester } = request;
  const needed = needWords(request);
  return {
    agent: visibleLine(agent),
    permission: visibleLine(permission),
    ...(requester && { requester: { kind: requester.kind } }),
    ...(needed !== undefined && { needed }),
    risks: risks.map(({ kind }) => ({ kind: riskNameOf(kind) })),
  };
}

/** Returns what is asked, where the channel may have it. `complete` says that a reader sees all of the request. */
function textsOf(request: PermissionRequest, content: ChannelContent): object {
  if (content !== "full") return { complete: false };
  const shown = shownWhole(request);
  const texts = request.display.map(visibleLine);
  const display = Buffer.byteLength(texts.join("")) <= maxTextBytes ? texts : [];
  return shown === undefined ? { display, complete: false } : { display, shown, complete: true };
}

/**
 * Returns the lines that show a whole request, for readers who may approve by them; undefined if lines cannot: it is long, asks a
 * question, changes a file, or has a text or a program that is behind the link.
 */
export function shownWhole(request: PermissionRequest): string[] | undefined {
  const { view, preview, question, warnings, permission, display } = request;
  const isBehindLink = preview !== undefined && (preview.diff !== "" || preview.url !== "");
  if (view?.complete !== true || view.files.length > 0 || isBehindLink || question.length > 0) return undefined;
  const lines = viewLines(request);
  if (lines.some(({ cut, kind }) => cut !== "" || kind === "missing" || kind === "note")) return undefined;
  const { text = "", command = "" } = preview ?? {};
  const isShown = (effect: string) => effect === "" || lines.some((line) => line.text === visible(effect));
  if (!isShown(text) || !isShown(command)) return undefined;
  // Such as the directory that a link of the input leads to, and the host that a body calls.
  const asked = display.filter((text) => !isShown(text)).map((text) => `${permission}: ${text}`);
  const hosts = (preview?.hosts ?? []).map((host) => `sent to: ${host}`);
  const shown = [...lines.map(({ name, text }) => `${name}: ${text}`), ...asked, ...hosts, ...warnings].map(
    visibleLine,
  );
  return Buffer.byteLength(shown.join("")) <= maxTextBytes ? shown : undefined;
}

/** Returns the title and the text of a notice for people: lines of plain text, and what an agent wrote never begins a line that it has not. */
export function wordsOf(notice: Notice, content: ChannelContent): { title: string; text: string } {
  if (notice.phase === "test") return { title: "Toolgate: a test", text: "Requests will arrive here." };
  const { request } = notice;
  if (notice.phase === "settled") {
    const { settled } = notice;
    const [, outcome] = outcomeOf(settled);
    return {
      title: `Toolgate: ${outcome}`,
      text: content === "none" ? "" : `${outcome} by ${visibleLine(deciderOf(settled))}`,
    };
  }
  if (content === "none") return { title: "Toolgate: a request waits", text: "" };
  const risks = request.risks.map(({ kind }) => riskWords.get(kind) ?? "").filter(Boolean);
  const lines = [
    risks.length === 0 ? "" : `Risks: ${risks.join(", ")}`,
    needWords(request) ?? "",
    ...(content === "full" ? [cut(request.display.map(plainLine).join("\n"), 2_000)] : []),
  ];
  return {
    title: cut(`Toolgate: ${plainLine(request.agent)} asks: ${plainLine(request.permission)}`, 200),
    text: lines.filter(Boolean).join("\n"),
  };
}

/** Returns text of an agent for people: it is one line, and no application makes a link of an address in it. */
const plainLine = (text: string) => visibleLine(text).replaceAll("://", ":\\u{2f}/");

const deciderOf = ({ person, by, channel }: PermissionSettled) =>
  `${person?.name || by}${channel === "" ? "" : ` (at ${channel})`}`;

const outcomes: ReadonlyMap<PermissionOutcome, readonly [name: string, words: string]> = new Map([
  [PermissionOutcome.ONCE, ["once", "approved once"]],
  [PermissionOutcome.ALWAYS, ["always", "approved, and remembered"]],
  [PermissionOutcome.EDITED, ["edited", "edited, then approved"]],
  [PermissionOutcome.REJECT, ["reject", "rejected"]],
  [PermissionOutcome.DENIED, ["denied", "denied"]],
  [PermissionOutcome.EXPIRED, ["expired", "expired"]],
  [PermissionOutcome.WITHDRAWN, ["withdrawn", "withdrawn"]],
]);

const outcomeOf = ({ outcome }: PermissionSettled) => outcomes.get(outcome) ?? (["settled", "settled"] as const);

function cut(text: string, max: number): string {
  return text.length <= max ? text : `${text.slice(0, max - 1).replace(/[\ud800-\udbff]$/, "")}…`;
}

const isoOf = (time: number) => new Date(time).toISOString();
