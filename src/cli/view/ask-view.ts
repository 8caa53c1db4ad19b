import { PermissionAction } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest, Preview } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { directoryWords, onceWords, repetitionWords } from "../../view/asks.ts";
import { type FileText, unreadWords } from "../../view/file-text.ts";
import { behalfWords, needWords, savableOffers, voteWords } from "../../view/need.ts";
import { behindWords } from "../../view/people.ts";
import { asksQuestions } from "../../view/questions.ts";
import { requesterWords } from "../../view/requester.ts";
import { riskLines } from "../../view/risks.ts";
import { viewLines } from "../../view/view-lines.ts";
import { hiddenWords } from "../../view/words.ts";
import { questionLines } from "../question/parse-answer.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";
import type { FileTexts } from "./whole-request.ts";
import { durationOf } from "./words.ts";

/** A permission request as lines: the whole call, its effects, the reason, what "always" would save, and the time left. */
export function askLines(
  ask: PermissionRequest,
  paint: Paint,
  { now, isViewShown = false, texts }: { now: number; isViewShown?: boolean; texts?: FileTexts },
): string[] {
  const { permission, expires } = ask;
  const words = requesterWords(ask, terminalLine);
  const asker = words === "" ? "" : `, asked by ${words}${behindWords(ask, terminalLine)}`;
  const head = `${paint(["yellow", "bold"], `? ${terminalLine(permission)}`)}${asker}`;
  return [
    expires > 0 ? `${head}  ${paint("dim", `${durationOf(expires - now)} to answer`)}` : head,
    ...riskFields(ask, paint),
    ...field("beware", ask.warnings, (_, text) => paint("red", text)),
    ...field("votes", [needWords(ask), ...ask.votes.map(voteWords), behalfWords(ask)].filter(isText), paint),
    ...field("changed", [ask.changed].filter(Boolean), paint),
    ...(isViewShown ? [] : viewFields(ask, paint, texts)),
    ...(asksQuestions(ask) ? ask.question.flatMap((each, i) => questionLines(each, i, paint)) : askedFor(ask, paint)),
  ];
}

const isText = (text: string | undefined): text is string => text !== undefined;

/** The subject of an ask that is no question, its reasons, and what "always" would save. */
function askedFor(ask: PermissionRequest, paint: Paint): string[] {
  const { preview } = ask;
  const offers = savableOffers(ask);
  const mixed = mixedPieces(ask);
  return [
    ...field("for", mixed.length > 0 ? mixed : patternsBeside(ask), paint),
    ...field("place", [terminalLine(directoryWords(ask))].filter(Boolean), paint),
    ...field("once", [onceWords(ask)].filter(Boolean), paint),
    ...field("again", [repetitionWords(ask)].filter(Boolean), paint),
    ...previewLines(preview && beside(preview, ask), paint),
    ...field("why", mixed.length > 0 ? [] : reasonsFor(ask), paint),
    ...field(
      "always",
      offers.map(({ text }, index) => (offers.length > 1 ? `${index + 1}  ${text}` : text)),
      paint,
    ),
  ];
}

/** The whole call, as every client shows it, with the texts of its files. */
function viewFields(ask: PermissionRequest, paint: Paint, texts?: FileTexts): string[] {
  return viewLines(ask).flatMap(({ kind, name, text, cut, path, hash }) => [
    ...field(
      terminalLine(name),
      [hash === undefined ? text : `${text}, SHA-256 ${hash}`],
      kind === "missing" ? (_, line) => paint("yellow", line) : paint,
    ),
    ...field("", cut === "" ? [] : [paint("yellow", cut)], paint),
    ...(path === undefined ? [] : textFields(texts ? (texts.get(path) ?? beingRead) : notRead, paint)),
  ]);
}

const beingRead: FileText = { text: "", unread: "it is being read" };
const notRead: FileText = { text: "", unread: "`toolgate inbox` shows it" };

function textFields({ text, unread }: FileText, paint: Paint): string[] {
  const lines = [
    ...(unread === "" ? [] : [paint("yellow", terminalSafe(unreadWords(unread)))]),
    ...(text === "" ? [] : [text.replace(/\n$/, "")]),
  ];
  return field("", lines, paint).map((line) => `  ${line}`);
}

/** The parts of a preview that are no value of the input. */
function beside(preview: Preview, ask: PermissionRequest): Preview {
  const values = new Set(viewLines(ask).map(({ text }) => text));
  const { command, text } = preview;
  return { ...preview, command: values.has(command) ? "" : command, text: values.has(text) ? "" : text };
}

/** The risks of a permission request, the heaviest first. */
function riskFields(ask: PermissionRequest, paint: Paint): string[] {
  const lines = riskLines([ask]).map(
    ({ owner, words, parts }) =>
      `${owner === "" ? "" : `${terminalLine(owner)} `}${paint("red", words)}  ${parts.map(terminalLine).join("  ")}`,
  );
  return lines.map((line, index) => `  ${paint("dim", (index === 0 ? "risk" : "").padEnd(width))}${line}`);
}

/** A permission request on one line. */
export function askSummary({ permission, preview, display, patterns }: PermissionRequest): string {
  const what = preview?.command || (display.length > 0 ? display : patterns).join(", ");
  return terminalLine(`${permission} ${what}`);
}

/** Each pattern with its own why, such as the commands of a line; none where all have the same. */
function mixedPieces({ patterns, display, decisions }: PermissionRequest): string[] {
  const reasons = new Map(decisions.map(({ pattern, reason }) => [pattern, reason]));
  const found = new Set(patterns.flatMap((pattern) => reasons.get(pattern) || []));
  if (found.size < 2) return [];
  return patterns.map((pattern, i) => [display[i] ?? pattern, reasons.get(pattern)].filter(Boolean).join("  ← "));
}

function reasonsFor({ decisions }: PermissionRequest): string[] {
  const asked = decisions.filter(({ action, reason }) => action === PermissionAction.ASK && reason !== "");
  return [...new Set(asked.map(({ reason }) => reason))];
}

/** The preview of a call as lines. */
export function previewLines(preview: Preview | undefined, paint: Paint): string[] {
  if (!preview) return [];
  const { command, paths, hosts, diff, url, additions, deletions, text, hidden } = preview;
  return [
    ...field("command", command === "" ? [] : [command], paint),
    ...field("paths", paths, paint),
    ...field("hosts", hosts, paint),
    ...field("sandbox", [hiddenWords(hidden)].filter(Boolean), paint),
    ...field("text", text === "" ? [] : [text], paint),
    ...field("change", additions + deletions > 0 ? [`+${additions} −${deletions} lines`] : [], paint),
    ...diffLines(diff, paint),
    ...field("more", url === "" ? [] : [`only a part is shown; the whole is ${url}`], paint),
  ];
}

/** A unified diff, coloured by line. */
export function diffLines(diff: string, paint: Paint): string[] {
  if (diff === "") return [];
  return terminalSafe(diff)
    .replace(/\n$/, "")
    .split("\n")
    .map((line) => `  ${paintDiffLine(line, paint)}`);
}

/** The patterns that the preview does not show anyway. */
function patternsBeside({ patterns, display, preview }: PermissionRequest): string[] {
  const shown = preview ? [preview.command, ...preview.paths, ...preview.hosts] : [];
  return patterns.flatMap((pattern, i) => (shown.includes(pattern) ? [] : (display[i] ?? pattern)));
}

function field(name: string, values: readonly string[], paint: Paint): string[] {
  const label = name.length < width ? name.padEnd(width) : `${name}  `;
  return values
    .flatMap((value) => terminalSafe(value).split("\n"))
    .map((line, index) => `  ${paint("dim", index === 0 ? label : " ".repeat(width))}${line}`);
}

function paintDiffLine(line: string, paint: Paint): string {
  if (line.startsWith("+++") || line.startsWith("---")) return paint("bold", line);
  if (line.startsWith("@@")) return paint("cyan", line);
  if (line.startsWith("+")) return paint("green", line);
  return line.startsWith("-") ? paint("red", line) : line;
}

const width = 9;
