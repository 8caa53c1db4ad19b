import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { ToolErrorReason, type ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { ExecuteToolRequestSchema, ExecuteToolResponse } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { isCut } from "../../client/resume-stream.ts";
import { failedCommandWords } from "../../view/outcomes.ts";
import type { ServerConnection } from "../connection/connection.ts";
import { type Position, resume } from "../connection/resume.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import { commandFailure } from "../failure/failure.ts";
import type { Screen } from "../terminal/screen.ts";
import { createSafeDecoder, terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";
import { partLines } from "../view/call-view.ts";
import { durationOf, linkPlaces } from "../view/words.ts";
import { type Answering, createAskPrompt } from "./ask-prompt.ts";

/** A call to run and to follow to its end. */
export interface Execution {
  server: ServerConnection;
  screen: Screen;
  request: MessageInitShape<typeof ExecuteToolRequestSchema> & {
    sessionId: string;
    callId: string;
    tool: string;
    input: JsonObject;
  };
  /** The store of the session; empty if it is not known yet. */
  storeId: string;
  /** Makes the approver at this terminal, given the handler of Ctrl-C; absent: requests are answered elsewhere. */
  answering?: (interrupt: () => void) => Answering;
  /** The server, if outputs can be fetched from it later. */
  url?: string;
  /** Sentence for a person who leaves before the end: the outcome of the call, and what to do. */
  leftBehind: string;
}

/** Runs a call, shows what happens, and returns the exit code. Ctrl-C cancels the call; a second one leaves it running. */
export async function execute({
  server,
  screen,
  request,
  storeId,
  answering,
  leftBehind,
  url,
}: Execution): Promise<number> {
  const leave = new AbortController();
  const { sessionId, callId } = request;
  let interrupts = 0;
  let over = false;
  function interrupt(): void {
    interrupts += 1;
    if (interrupts > 1) {
      leave.abort(new CommandError("left before the end", leftBehind, exitCodes.cancelled));
      return;
    }
    screen.note("cancelling (Ctrl-C again leaves the call running)");
    server.tools.cancelTool({ sessionId, callId }).catch((error) => {
      if (!over) screen.fail(commandFailure(error, server));
    });
  }
  const asking = createAskPrompt({ screen, server, ...(answering && { answering: answering(interrupt) }) });
  const view = createCallView(screen, url);
  const stop = onInterrupt(interrupt);
  const start: Position = { afterSeq: 0n, storeId };
  try {
    const frames = resume<ExecuteToolResponse>({
      start,
      signal: leave.signal,
      open: ({ afterSeq, storeId: expectedStoreId }) =>
        server.tools.executeTool({ ...request, afterSeq, expectedStoreId }, { signal: leave.signal, timeoutMs: 0 }),
      isLast: (frame) => endOf(frame) !== undefined,
      onCut: screen.note,
    });
    for await (const frame of frames) {
      start.storeId ||= frame.storeId;
      const { event } = frame;
      if (!event) continue;
      if (screen.json) screen.emit(SessionEventSchema, event);
      if (event.event.case === "permissionAsked") asking.opened(event.event.value);
      if (event.event.case === "permissionSettled") await asking.settled(event.event.value);
      const end = endOf(frame);
      if (end) await asking.close();
      view.show(event);
      if (end) return exitCodeOf(end);
    }
    return exitCodes.lost;
  } catch (error) {
    // The server has accepted the call: it goes on, only the connection is lost.
    if (start.storeId === "" || !(error instanceof ConnectError && isCut(error))) throw error;
    const failure = commandFailure(error, server);
    throw new CommandError(failure.message, leftBehind, failure.exitCode, {
      cause: error,
    });
  } finally {
    over = true;
    stop();
    screen.status(undefined);
    await asking.close();
  }
}

/** Calls the listener on SIGINT and SIGTERM instead of ending the process; returns the function that removes it. */
function onInterrupt(listener: () => void): () => void {
  const signals = ["SIGINT", "SIGTERM"] as const;
  for (const signal of signals) process.on(signal, listener);
  return () => {
    for (const signal of signals) process.off(signal, listener);
  };
}

/** The part in its terminal state, if this frame has it. */
function endOf({ event }: ExecuteToolResponse): ToolPart | undefined {
  if (event?.event.case !== "part") return undefined;
  const part = event.event.value;
  return part.state.case === "completed" || part.state.case === "error" ? part : undefined;
}

function createCallView(screen: Screen, url: string | undefined): { show(event: SessionEvent): void } {
  const output = createLiveOutput(screen);
  let title = "";
  function show({ event }: SessionEvent): void {
    if (event.case === "output" && !screen.json) output.piece(event.value.data);
    if (event.case === "progress") progress(event.value.title ?? title);
    if (event.case === "part") state(event.value);
  }
  function progress(next: string): void {
    if (next !== title) screen.note(`  ${screen.paint.err("dim", terminalLine(next))}`);
    title = next;
  }
  function state(part: ToolPart): void {
    const { state, tool } = part;
    if (!screen.json && state.case === "completed")
      output.end(state.value.output, state.value.metadata?.truncated === true, (text) =>
        screen.coloured ? linkPlaces(text, part) : text,
      );
    if (!screen.json && state.case === "error") output.end("", true);
    screen.status(undefined);
    for (const line of partLines(part, { paint: screen.paint.err, ...(url !== undefined && { url }) }))
      screen.note(line);
    if (state.case !== "running") return;
    title = state.value.title ?? "";
    const began = state.value.time?.start ?? Date.now();
    screen.status(() => `● ${terminalLine(tool)} runs, ${durationOf(Date.now() - began)}`);
  }
  return { show };
}

/** Writes a call's output to stdout: pieces as they arrive, and at the end only the rest. */
interface LiveOutput {
  piece(bytes: Uint8Array): void;
  /** Writes the rest of the output that the call returned; `decorate` adds links to the safe text. */
  end(output: string, truncated: boolean, decorate?: (safeText: string) => string): void;
}

/** Creates the output of one call. */
function createLiveOutput(screen: Screen): LiveOutput {
  const safe = { colours: screen.coloured ? "keep" : "drop" } as const;
  const safeDecoder = createSafeDecoder(safe);
  const decoder = new TextDecoder();
  let shown = "";
  return {
    piece(bytes) {
      if (shown.length < maxComparedLength) shown += decoder.decode(bytes, { stream: true });
      screen.write(safeDecoder.push(bytes));
    },
    end(output, truncated, decorate = (safeText) => safeText) {
      screen.write(safeDecoder.end());
      screen.write(decorate(terminalSafe(remainingOutput(output, shown, truncated), safe)));
    },
  };
}

/** The part of an output that was not shown yet. A truncated output that was streamed was shown whole. */
export function remainingOutput(output: string, shown: string, truncated: boolean): string {
  const start = shown.trimEnd();
  if (output.startsWith(start)) {
    const rest = output.slice(start.length);
    if (rest.trim() === "" && shown !== "") return "";
    return shown.endsWith("\n") ? rest.replace(/^\n/, "") : rest;
  }
  return truncated ? "" : `${shown.endsWith("\n") ? "" : "\n"}${output}`;
}

// Outputs that are not truncated are shorter.
const maxComparedLength = 1_048_576;

/** Maps the terminal state of a call to the exit code of the command that ran it. */
export function exitCodeOf(part: ToolPart): number {
  const { state } = part;
  if (state.case === "completed") return failedCommandWords(part) === "" ? exitCodes.ok : exitCodes.commandFailed;
  if (state.case !== "error") return exitCodes.lost;
  return exitCodeOfReason(state.value.reason);
}

/** Maps the reason of a failure to an exit code. */
export function exitCodeOfReason(reason: ToolErrorReason): number {
  return byReason.get(reason) ?? exitCodes.failed;
}

const byReason = new Map<ToolErrorReason, number>([
  [ToolErrorReason.INVALID_INPUT, exitCodes.usage],
  [ToolErrorReason.UNKNOWN_TOOL, exitCodes.usage],
  [ToolErrorReason.STALE_TOOL, exitCodes.usage],
  [ToolErrorReason.DENIED, exitCodes.refused],
  [ToolErrorReason.GUARD_NOT_LOADED, exitCodes.refused],
  [ToolErrorReason.REJECTED, exitCodes.refused],
  [ToolErrorReason.EXPIRED, exitCodes.refused],
  [ToolErrorReason.TIMEOUT, exitCodes.cancelled],
  [ToolErrorReason.CANCELLED, exitCodes.cancelled],
  [ToolErrorReason.EXECUTOR_LOST, exitCodes.lost],
  [ToolErrorReason.NOT_REPORTED, exitCodes.lost],
  [ToolErrorReason.RESULT_NOT_STORED, exitCodes.lost],
]);
