import {
  type FilePart,
  ToolEffects,
  ToolErrorReason,
  type ToolPart,
  type ToolStateCompleted,
  type ToolStateError,
} from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { effectsWords, errorReasonWords, failedCommandWords } from "../../view/outcomes.ts";
import { serverWords } from "../connection/connection.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine, terminalLines } from "../terminal/terminal-safe.ts";
import { commandLine, durationOf, sizeOf } from "./words.ts";

/** Options of the lines of a call. */
export interface PartView {
  paint: Paint;
  /** The server, where its outputs can be fetched later; absent if it ends with the call. */
  url?: string;
}

/** A call's state as lines: the state first, then details of its outcome. */
export function partLines(part: ToolPart, view: PartView): string[] {
  return [...stateLines(part, view), ...childSessionLines(part, view)];
}

/** The command that follows the subagent of a call; none without a subagent. */
function childSessionLines({ childSessionId }: ToolPart, { url }: PartView): string[] {
  if (childSessionId === "" || url === undefined) return [];
  return [`  subagent    ${commandLine("toolgate", "watch", childSessionId, ...serverWords(url))}`];
}

function stateLines(part: ToolPart, view: PartView): string[] {
  const { paint } = view;
  const { state, tool } = part;
  switch (state.case) {
    case "pending":
      return [stateLine(paint("dim", "○ pending"), tool)];
    case "running":
      return [stateLine(paint("cyan", "● running"), tool, state.value.title)];
    case "completed":
      return completedLines(part, state.value, view);
    case "error":
      return errorLines(tool, state.value, paint);
    default:
      return [stateLine("unknown state", tool)];
  }
}

/** The next step after an error; empty if the error itself contains it. */
export function nextStepOf(tool: string, reason: ToolErrorReason): string {
  switch (reason) {
    case ToolErrorReason.INVALID_INPUT:
    case ToolErrorReason.STALE_TOOL:
      return `see what it takes with \`${commandLine("toolgate", "tools", tool)}\``;
    case ToolErrorReason.UNKNOWN_TOOL:
      return "list the tools with `toolgate tools`";
    case ToolErrorReason.DENIED:
      return `see which rule decides with \`${commandLine("toolgate", "plan", tool)} JSON\``;
    case ToolErrorReason.EXPIRED:
      return "call it again, and answer with `toolgate inbox` in another terminal";
    case ToolErrorReason.TIMEOUT:
      return "give it longer with --timeout MS";
    case ToolErrorReason.EXECUTOR_LOST:
    case ToolErrorReason.RESULT_NOT_STORED:
      return "check what it did before you call it again: a new call runs it again";
    case ToolErrorReason.NOT_REPORTED:
      return "check what the agent did: it was allowed to run this and did not say how it ended";
    case ToolErrorReason.CHANGED_AFTER_APPROVAL:
      return "call it again: the ask will show the file as it is now";
    case ToolErrorReason.GUARD_NOT_LOADED:
      return "see all files that are not loaded with `toolgate tools`";
    case ToolErrorReason.OUTPUT_LIMIT:
      return "let it write to a file, or print less";
    default:
      return "";
  }
}

function completedLines(part: ToolPart, state: ToolStateCompleted, { paint, url }: PartView): string[] {
  const { tool, sessionId } = part;
  const { title, time, metadata, attachments } = state;
  const took = time ? paint("dim", durationOf(time.end - time.start)) : "";
  const fetchWith = (output: string) =>
    url === undefined ? "" : commandLine("toolgate", "output", sessionId, output, ...serverWords(url));
  return [
    `${stateLine(completedMark(part, paint), tool, title)}  ${took}`,
    ...truncationLines(metadata, fetchWith),
    ...attachments.map((file) => `  attachment  ${attachmentWords(file, fetchWith)}`),
  ];
}

function completedMark(part: ToolPart, paint: Paint): string {
  const failure = failedCommandWords(part);
  return failure === "" ? paint("green", "✓ completed") : paint("red", `✗ ${terminalLine(failure)}`);
}

function truncationLines(metadata: ToolStateCompleted["metadata"], fetchWith: (output: string) => string): string[] {
  const { truncated, originalSize, truncatedSize, outputPath } = metadata ?? {};
  if (truncated !== true) return [];
  const whole = typeof outputPath === "string" ? fetchWith(outputPath) : "";
  const sizes = `the model sees ${sizeOf(Number(truncatedSize))} of ${sizeOf(Number(originalSize))}`;
  return [`  output      ${sizes}${whole === "" ? "" : `; the whole: ${whole}`}`];
}

function attachmentWords({ filename, mime, size, url }: FilePart, fetchWith: (output: string) => string): string {
  const words = `${terminalLine(filename ?? "(no name)")}  ${terminalLine(mime)}  ${sizeOf(Number(size))}`;
  if (url.startsWith("data:")) return `${words}  in the answer itself: see it with --json`;
  const command = fetchWith(url);
  return command === "" ? words : `${words}  fetch it: ${command} > FILE`;
}

function errorLines(tool: string, { reason, error, effects, time }: ToolStateError, paint: Paint): string[] {
  const ran = time && time.end > time.start ? `  ${paint("dim", durationOf(time.end - time.start))}` : "";
  const next = nextStepOf(tool, reason);
  return [
    `${stateLine(errorMark(reason, paint), tool)}${ran}`,
    ...terminalLines(error).map((line) => `  ${line}`),
    ...(effects === ToolEffects.UNKNOWN ? [`  ${paint("yellow", effectsWords(effects))}`] : []),
    ...(next === "" ? [] : [`  ${paint("dim", "next:")} ${next}`]),
  ];
}

function errorMark(reason: ToolErrorReason, paint: Paint): string {
  const words = errorReasonWords(reason);
  return reason === ToolErrorReason.NOT_REPORTED ? paint("yellow", `? ${words}`) : paint("red", `✗ ${words}`);
}

function stateLine(state: string, tool: string, title = ""): string {
  return [state, terminalLine(tool), terminalLine(title)].filter((word) => word !== "").join("  ");
}
