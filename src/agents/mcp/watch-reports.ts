import { setTimeout as sleep } from "node:timers/promises";
import type { ProgressNotification } from "@modelcontextprotocol/server";
import type { ToolProgress } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { isEnded } from "./hold-call.ts";
import { isLostConnection, type ToolgateApi } from "./toolgate-api.ts";

/** A progress notification. One without a number, or with one that does not rise, gets the next number. */
export interface McpReport {
  readonly progress?: number;
  readonly total?: number;
  readonly message?: string;
}

/** Difference to the progress before of a notification without a number. It is small, since the tool may report numbers later. */
const minStep = 0.001;

/** Returns the function that sends rising progress, in order, to a client that wants it. */
export function progressTo(
  progressToken: string | number | undefined,
  send: (notification: ProgressNotification) => Promise<void>,
): { progress?: (report: McpReport) => Promise<void> } {
  if (progressToken === undefined) return {};
  let last = 0;
  let sent = Promise.resolve();
  return {
    async progress({ progress: given, ...report }) {
      const progress = given !== undefined && given > last ? given : last + minStep;
      last = progress;
      const params = { progressToken, progress, ...report };
      sent = sent.catch(() => undefined).then(() => send({ method: "notifications/progress", params }));
      await sent;
    },
  };
}

/** Watch of what the tool of a call reports while it runs. */
export interface ReportWatch {
  /** Returns the last message of the tool. */
  latestMessage(): string | undefined;
  /** Resolves when the call has asked since the last time that it resolved. */
  asked(): Promise<void>;
  /** Resolves when the reports up to a revision of the call's part are passed on, or some time has passed. */
  reach(revision: bigint, signal: AbortSignal): Promise<void>;
  /** Passes on nothing more. */
  stop(): void;
}

/** Time after the end of a call in which its last reports arrive. */
const reachMs = 1_000;
const retryMs = 1_000;

/** Passes on what the tool of a call reports, in order, from now on. Resolves when no report can be missed any more. */
export async function watchReports(
  { tools }: ToolgateApi,
  { sessionId, callId }: { sessionId: string; callId: string },
  pass: (report: McpReport) => Promise<void> = async () => {},
): Promise<ReportWatch> {
  const stopped = new AbortController();
  const { signal } = stopped;
  const { promise: begun, resolve: begin } = Promise.withResolvers<void>();
  let latest: McpReport = {};
  let ask = Promise.withResolvers<void>();
  /** Number up to which events were passed on; undefined before the end of the snapshot. */
  let seen: bigint | undefined;

  async function passEvents(): Promise<void> {
    const from = seen === undefined ? { snapshot: true } : { afterSeq: seen };
    for await (const { event, lastSeq, snapshotEnd } of tools.watchSession(
      { sessionId, callId, ...from },
      { signal },
    )) {
      const report = event?.event.case === "progress" ? reportOf(event.event.value) : {};
      if (Object.keys(report).length > 0 && JSON.stringify(report) !== JSON.stringify(latest)) {
        latest = report;
        if (!signal.aborted) await pass(report);
      }
      if (event?.event.case === "permissionAsked") ask.resolve();
      if (snapshotEnd || seen !== undefined) seen = lastSeq;
      if (snapshotEnd) begin();
      if (event?.event.case === "part" && isEnded(event.event.value)) return;
    }
  }

  /** Repeats a watch whose connection was lost. Any other failure ends the reports; the request for the call meets it, too. */
  async function passAll(): Promise<void> {
    for (;;) {
      try {
        return await passEvents();
      } catch (error) {
        if (signal.aborted || !isLostConnection(error)) return;
      }
      begin();
      await sleep(retryMs, undefined, { signal }).catch(() => undefined);
    }
  }

  const passing = passAll().finally(begin);
  await begun;
  return {
    latestMessage: () => latest.message,
    async asked() {
      await ask.promise;
      ask = Promise.withResolvers();
    },
    async reach(revision, left) {
      if (seen !== undefined && seen >= revision) return;
      const over = AbortSignal.any([signal, left]);
      await Promise.race([passing, sleep(reachMs, undefined, { signal: over, ref: false }).catch(() => undefined)]);
    },
    stop: () => stopped.abort(),
  };
}

/** Reads numbers and text from the metadata: fields of `progress`, as MCP servers report them, or beside a number of that name. */
function reportOf({ title, metadata = {} }: ToolProgress): McpReport {
  const { progress: given } = metadata;
  const isNested = typeof given === "object" && given !== null && !Array.isArray(given);
  const { progress, total, message } = isNested ? given : metadata;
  const text = typeof message === "string" ? message : title && `running: ${title}`;
  return {
    ...(typeof progress === "number" && { progress, ...(typeof total === "number" && { total }) }),
    ...(text && { message: text }),
  };
}
