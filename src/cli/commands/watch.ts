import type { Command } from "commander";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { WatchSessionResponse } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { toJsonForm } from "../../view/json-form/convert.ts";
import { wholeNumber, withServer } from "../command.ts";
import type { ServerConnection } from "../connection/connection.ts";
import { resume } from "../connection/resume.ts";
import type { CliContext } from "../context.ts";
import type { Paint, Screen } from "../terminal/screen.ts";
import { createSafeDecoder, terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";
import { askLines } from "../view/ask-view.ts";
import { partLines } from "../view/call-view.ts";
import { escalatedLine, settledWords, votedLine } from "../view/settled.ts";
import { linkPlaces } from "../view/words.ts";

/** Defines `toolgate watch`. */
export function defineWatch(command: Command, context: CliContext): void {
  command
    .description("Follow what happens in a session, across lost connections, until Ctrl-C")
    .argument("<session>", "the session")
    .option("--after <n>", "only what comes after this event", wholeNumber, 0)
    .option("--call <id>", "only this call")
    .option("--json-form", "like --json, in the words of opencode's JSON: see gen/jsonschema/sessionEvent.schema.json")
    .action((session: string, options: WatchOptions) =>
      withServer(context, command, "approver", (server, screen) => watch(server, screen, session, options)),
    );
}

interface WatchOptions {
  after: number;
  call?: string;
  jsonForm?: boolean;
}

async function watch(
  { tools, url }: ServerConnection,
  screen: Screen,
  sessionId: string,
  { after, call: callId = "", jsonForm = false }: WatchOptions,
): Promise<void> {
  const { signal } = new AbortController();
  const linesOf = createEventView(screen, url);
  const frames = resume<WatchSessionResponse>({
    start: { afterSeq: BigInt(after), storeId: "" },
    signal,
    open: ({ afterSeq }) => tools.watchSession({ sessionId, callId, afterSeq }, { timeoutMs: 0 }),
    isLast: () => false,
    onCut: screen.note,
  });
  for await (const { event } of frames) {
    if (!event) continue;
    if (jsonForm) screen.write(`${JSON.stringify(toJsonForm(SessionEventSchema, event))}\n`);
    else screen.show(SessionEventSchema, event, (paint) => numbered(event.seq, linesOf(event), paint));
  }
}

function numbered(seq: bigint, lines: readonly string[], paint: Paint): string[] {
  return lines.map((line, index) => `${paint("dim", index === 0 ? String(seq).padStart(5) : "     ")}  ${line}`);
}

function createEventView(screen: Screen, url: string): (event: SessionEvent) => string[] {
  const paint = screen.paint.out;
  // Several calls may write at the same time; each has its own half characters.
  const decoders = new Map<string, ReturnType<typeof createSafeDecoder>>();
  function outputLines(callId: string, bytes: Uint8Array): string[] {
    const decoder = decoders.get(callId) ?? createSafeDecoder({ colours: screen.coloured ? "keep" : "drop" });
    decoders.set(callId, decoder);
    return barred(decoder.push(bytes).replace(/\n$/, ""));
  }
  const barred = (text: string) => text.split("\n").map((line) => `${paint("dim", "│")} ${line}`);
  const withLinks = (text: string, part: ToolPart) => (screen.coloured ? linkPlaces(text, part) : text);
  return ({ event }) => {
    if (event.case === "output") return outputLines(event.value.callId, event.value.data);
    if (event.case !== "part") return eventLines(event, paint);
    const { state } = event.value;
    const lines = partLines(event.value, { paint, url });
    if (state.case !== "completed") return lines;
    if (decoders.delete(event.value.callId)) return lines;
    return [...barred(withLinks(terminalSafe(state.value.output), event.value).trimEnd()), ...lines];
  };
}

function eventLines(event: SessionEvent["event"], paint: Paint): string[] {
  switch (event.case) {
    case "progress":
      return [`${paint("dim", "…")} ${terminalLine(event.value.title ?? "")}`.trimEnd()];
    case "permissionAsked":
      return [
        ...askLines(event.value, paint, { now: Date.now() }),
        `  ${paint("dim", "ask")}      ${terminalLine(event.value.id)}`,
      ];
    case "permissionVoted":
      return [votedLine(event.value, paint)];
    case "permissionEscalated":
      return [escalatedLine(event.value, paint)];
    case "permissionSettled":
      return [`${paint("dim", terminalLine(event.value.permissionId))}  ${settledWords(event.value)}`];
    case "backgroundEnded":
      return [`ended in the background  ${terminalLine(event.value.tool)}  ${terminalLine(event.value.callId)}`];
    case "granted":
      return [`granted  ${terminalLine(event.value.text)}  ${paint("dim", terminalLine(event.value.id))}`];
    case "revoked":
      return [`revoked  ${terminalLine(event.value.text)}  ${paint("dim", terminalLine(event.value.id))}`];
    default:
      return [paint("dim", "an event of a newer server")];
  }
}
