import type { SessionEvent, ToolPart, ToolStateCompleted, ToolStateError } from "../client/client.ts";
import { ToolEffects, ToolErrorReason } from "../client/client.ts";

/** Result of a call: preliminary ones while it goes on, and its end as the last one. All of it is JSON. */
export type ToolgateOutput = OutputWaiting | OutputRunning | OutputCompleted | OutputFailed;

/** The call has not started. */
export interface OutputWaiting {
  status: "waiting";
  callId: string;
  /** Permission requests that people have to answer first. */
  asks: OpenAsk[];
}

/** A permission request of the call, for user interfaces. It is answered at the service, never by the host of the model. */
export interface OpenAsk {
  id: string;
  permission: string;
  patterns: string[];
  /** Time at which it expires, in ms since the epoch. */
  expires: number;
}

/** The tool runs. */
export interface OutputRunning {
  status: "running";
  callId: string;
  title: string;
  /** The last 64 KiB of what it wrote. */
  output: string;
}

/** The tool has returned. */
export interface OutputCompleted {
  status: "completed";
  callId: string;
  title: string;
  output: string;
  metadata: unknown;
  /** Files: of those over 64 KiB `url` names an output of the service. */
  attachments: { mime: string; url: string; filename?: string }[];
}

/** The call ended without a result. */
export interface OutputFailed {
  status: "error";
  callId: string;
  error: string;
  /** Name of the ToolErrorReason, such as `REJECTED`. */
  reason: string;
  /** `NONE` or `UNKNOWN`: whether the tool may have changed anything. */
  effects: string;
}

/** Follows the events of one call; each returns what to show, or undefined if nothing changed. */
export function createOutputFollower(callId: string): (event: SessionEvent) => ToolgateOutput | undefined {
  const asks = new Map<string, OpenAsk>();
  let decoder = new TextDecoder();
  let title = "";
  let output = "";
  let isRunning = false;
  const waiting = (): OutputWaiting => ({ status: "waiting", callId, asks: [...asks.values()] });
  const running = (): OutputRunning => ({ status: "running", callId, title, output });
  return ({ event }) => {
    switch (event.case) {
      case "permissionAsked": {
        const { id, permission, patterns, expires } = event.value;
        asks.set(id, { id, permission, patterns, expires });
        return isRunning ? undefined : waiting();
      }
      case "permissionSettled":
        asks.delete(event.value.permissionId);
        return undefined;
      case "progress":
        title = event.value.title ?? title;
        return isRunning ? running() : undefined;
      case "output":
        // The call was started again.
        if (event.value.offset === 0n) [output, decoder] = ["", new TextDecoder()];
        output = (output + decoder.decode(event.value.data, { stream: true })).slice(-maxOutput);
        return running();
      case "part":
        isRunning = event.value.state.case === "running";
        if (event.value.state.case === "running") title = event.value.state.value.title ?? title;
        return outputOf(event.value, callId) ?? (isRunning ? running() : undefined);
      default:
        return undefined;
    }
  };
}

function outputOf({ state }: ToolPart, callId: string): ToolgateOutput | undefined {
  if (state.case === "completed") return completed(state.value, callId);
  if (state.case === "error") return failed(state.value, callId);
  return undefined;
}

function completed({ title, output, metadata, attachments }: ToolStateCompleted, callId: string): OutputCompleted {
  const files = attachments.map(({ mime, url, filename }) => ({
    mime,
    url,
    ...(filename !== undefined && { filename }),
  }));
  return { status: "completed", callId, title, output, metadata: metadata ?? {}, attachments: files };
}

function failed({ error, reason, effects }: ToolStateError, callId: string): OutputFailed {
  return {
    status: "error",
    callId,
    error,
    reason: nameOf(ToolErrorReason, reason),
    effects: nameOf(ToolEffects, effects),
  };
}

/** Returns the name of a value; the number of a value that this version does not know. */
function nameOf(names: Readonly<Record<string, number>>, value: number): string {
  return Object.keys(names).find((name) => names[name] === value) ?? String(value);
}

const maxOutput = 65_536;
