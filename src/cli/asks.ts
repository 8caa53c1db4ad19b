import type { Command } from "commander";
import { type SessionEvent, SessionEventSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import type { WatchPermissionsResponse } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { type PermissionRequest, PermissionRequestSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { askLines } from "./ask-view.ts";
import { createAsking, replyCommand } from "./asking.ts";
import { withServer } from "./command.ts";
import type { Connection } from "./connection.ts";
import { exitCodes } from "./exit-codes.ts";
import { CommandError } from "./failure.ts";
import { answeringAtTerminal, hasTerminal } from "./prompt.ts";
import { resume } from "./resume.ts";
import type { Paint, Screen } from "./screen.ts";
import { settledWords } from "./settled.ts";
import { oneLine } from "./terminal-safe.ts";

/** Adds `toolgate asks`. */
export function addAsks(program: Command): void {
  program
    .command("asks")
    .description("show what waits for an answer")
    .option("--session <id>", "only of this session and its descendants")
    .option("--watch", "go on showing what is asked and settled, until Ctrl-C")
    .option("--answer", "watch, and answer at this terminal")
    .action((options: AsksOptions, command: Command) =>
      withServer(command, "approver", async (server, screen) => {
        if (options.answer) return await answer(server, screen, options);
        if (options.watch) return await watch(server, screen, options);
        return await list(server, screen, options);
      }),
    );
}

/** All open asks that this connection may see, oldest first. */
export async function* openAsks({ permissions }: Connection, sessionId: string): AsyncGenerator<PermissionRequest> {
  let pageToken = "";
  do {
    const page = await permissions.listPermissions({ sessionId, pageToken });
    yield* page.permissions;
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
}

interface AsksOptions {
  session?: string;
  watch?: boolean;
  answer?: boolean;
}

async function list(server: Connection, screen: Screen, { session = "" }: AsksOptions): Promise<undefined> {
  let count = 0;
  for await (const ask of openAsks(server, session)) {
    count += 1;
    screen.show(PermissionRequestSchema, ask, (paint) => openLines(ask, server, paint));
  }
  if (count === 0) screen.note("nothing waits for an answer");
}

async function watch(server: Connection, screen: Screen, options: AsksOptions): Promise<undefined> {
  for await (const { event } of changes(server, screen, options)) {
    if (event === undefined) continue;
    screen.show(SessionEventSchema, event, (paint) => changeLines(event, server, paint));
  }
}

/** Asks the person at this terminal each open ask once, also those of a snapshot that is sent again. */
async function answer(server: Connection, screen: Screen, options: AsksOptions): Promise<number> {
  if (!hasTerminal()) {
    throw new CommandError(
      "--answer needs a terminal",
      "answer with `toolgate reply ID once|always|reject`",
      exitCodes.usage,
    );
  }
  const leave = new AbortController();
  const answering = answeringAtTerminal(server, screen)(() => leave.abort());
  const asking = createAsking({ screen, server, answering });
  const seen = new Set<string>();
  process.once("SIGINT", () => leave.abort());
  screen.note("answering here; Ctrl-C ends it and leaves open what is open");
  try {
    for await (const { event } of changes(server, screen, options, leave.signal)) {
      if (event?.event.case === "permissionSettled") await asking.settled(event.event.value);
      if (event?.event.case !== "permissionAsked" || seen.has(event.event.value.id)) continue;
      seen.add(event.event.value.id);
      asking.opened(event.event.value);
    }
  } catch (error) {
    if (!leave.signal.aborted) throw error;
  } finally {
    await asking.close();
  }
  return exitCodes.ok;
}

function changes(
  { permissions }: Connection,
  screen: Screen,
  { session = "" }: AsksOptions,
  signal: AbortSignal = new AbortController().signal,
): AsyncGenerator<WatchPermissionsResponse> {
  return resume<WatchPermissionsResponse>({
    start: { afterSeq: 0n, storeId: "" },
    signal,
    open: () => permissions.watchPermissions({ sessionId: session }, { signal, timeoutMs: 0 }),
    isLast: () => false,
    onCut: screen.note,
  });
}

function changeLines({ event }: SessionEvent, server: Connection, paint: Paint): string[] {
  if (event.case === "permissionAsked") return openLines(event.value, server, paint);
  if (event.case !== "permissionSettled") return [];
  return [`${paint("dim", oneLine(event.value.permissionId))}  ${settledWords(event.value)}`];
}

function openLines(ask: PermissionRequest, server: Connection, paint: Paint): string[] {
  const call = ask.tool ? `  call ${oneLine(ask.tool.callId)}` : "";
  return [
    ...askLines(ask, paint, { now: Date.now() }),
    `  ${paint("dim", "session")}  ${oneLine(ask.sessionId)}${call}`,
    `  ${paint("dim", "answer")}   ${replyCommand(ask, server.url)}`,
    "",
  ];
}
