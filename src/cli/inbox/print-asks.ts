import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { WatchPermissionsResponse } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { type PermissionRequest, PermissionRequestSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { replyCommand } from "../call/ask-prompt.ts";
import type { ServerConnection } from "../connection/connection.ts";
import { type Resumable, resume } from "../connection/resume.ts";
import type { Paint, Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { askLines } from "../view/ask-view.ts";
import { escalatedLine, settledWords, votedLine } from "../view/settled.ts";
import { type FileTexts, readFileTexts } from "../view/whole-request.ts";

/** Yields all open permission requests that this connection may see, oldest first. */
export async function* openAsks(
  { permissions }: ServerConnection,
  sessionId: string,
): AsyncGenerator<PermissionRequest> {
  const pages = pagesOf((page) => permissions.listPermissions({ ...page, sessionId }));
  for await (const page of pages) yield* page.permissions;
}

/** Prints requests as they are opened and settled, the open ones first, while the server can be reached. */
export async function printAsks(server: ServerConnection, screen: Screen, sessionId = ""): Promise<void> {
  const { signal } = new AbortController();
  for await (const { event } of askChanges(server, { sessionId, signal, onCut: screen.note })) {
    if (event === undefined) continue;
    const texts =
      event.event.case === "permissionAsked" ? await textsFor(event.event.value, server, screen) : new Map();
    screen.show(SessionEventSchema, event, (paint) => changeLines(event, { server, paint, texts }));
  }
}

/** Follows WatchPermissions across lost connections; each connection starts with a snapshot, whose first frame has `storeId`. */
export function askChanges(
  { permissions }: ServerConnection,
  {
    sessionId,
    ...options
  }: { sessionId: string } & Pick<Resumable<WatchPermissionsResponse>, "signal" | "onCut" | "pauseMs">,
): AsyncGenerator<WatchPermissionsResponse> {
  return resume<WatchPermissionsResponse>({
    ...options,
    start: { afterSeq: 0n, storeId: "" },
    open: () => permissions.watchPermissions({ sessionId }, { signal: options.signal, timeoutMs: 0 }),
    isLast: () => false,
  });
}

/** Prints the open requests, the oldest first. */
export async function listAsks(server: ServerConnection, screen: Screen, session = ""): Promise<void> {
  let count = 0;
  for await (const ask of openAsks(server, session)) {
    count += 1;
    const texts = await textsFor(ask, server, screen);
    screen.show(PermissionRequestSchema, ask, (paint) => openLines(ask, { server, paint, texts }));
  }
  if (count === 0) screen.note("no permission request is open");
}

/** Lines up to which a list of requests shows the text of a file. */
const maxListedLines = 200;

async function textsFor(ask: PermissionRequest, server: ServerConnection, { json }: Screen): Promise<FileTexts> {
  const texts = json ? [] : await readFileTexts(server, ask);
  const long = { text: "", unread: `it has more than ${maxListedLines} lines; \`toolgate inbox\` shows it` };
  return new Map([...texts].map(([path, file]) => [path, countLines(file.text) > maxListedLines ? long : file]));
}

const countLines = (text: string) => text.replace(/\n$/, "").split("\n").length;

/** The output of a request that is printed with the texts of its files. */
interface Printed {
  server: ServerConnection;
  paint: Paint;
  texts: FileTexts;
}

function changeLines({ event }: SessionEvent, printed: Printed): string[] {
  const { paint } = printed;
  if (event.case === "permissionAsked") return openLines(event.value, printed);
  if (event.case === "permissionVoted") return [votedLine(event.value, paint)];
  if (event.case === "permissionEscalated") return [escalatedLine(event.value, paint)];
  if (event.case !== "permissionSettled") return [];
  return [`${paint("dim", terminalLine(event.value.permissionId))}  ${settledWords(event.value)}`];
}

function openLines(ask: PermissionRequest, { server, paint, texts }: Printed): string[] {
  const call = ask.tool ? `  call ${terminalLine(ask.tool.callId)}` : "";
  return [
    ...askLines(ask, paint, { now: Date.now(), texts }),
    `  ${paint("dim", "session")}  ${terminalLine(ask.sessionId)}${call}`,
    `  ${paint("dim", "answer")}   ${replyCommand(ask, server.url)}`,
    "",
  ];
}
