/** The module `toolgate/ai`: the tools of a Toolgate service as tools of the AI SDK. */

import { createRequire } from "node:module";
import { dynamicTool, jsonSchema, type Tool, type ToolSet } from "ai";
import {
  type ClientCallOptions,
  connect,
  PermissionAction,
  pagesOf,
  type SessionEvent,
  type ToolDefinition,
  ToolEffects,
  ToolErrorReason,
  type ToolgateClient,
  type ToolPart,
  type ToolStateCompleted,
  type ToolStateError,
} from "../client/client.ts";

type JsonObject = Parameters<ToolgateClient["stream"]>[1];

/** Options of `toolgateTools`. */
export interface ToolgateToolsOptions {
  /** Address of the service, such as `http://127.0.0.1:7420`. Default: TOOLGATE_URL, otherwise this one. */
  baseUrl?: string;
  /** Token with the role caller. Default: TOOLGATE_TOKEN, otherwise that of a service on this machine. */
  token?: string;
  /** Session of the calls; it is created if it does not exist. A tool call of the same ID attaches to its call. Default: a new one. */
  sessionId?: string;
  /** Agent that calls; the rules of this agent apply. */
  agent?: string;
  /** The model's provider, such as `anthropic`: schemas are adapted to it. */
  provider?: string;
  /** The model, which selects between equivalent tools. */
  model?: string;
  /** Cancels the call when the model's `abortSignal` aborts. Default: true. Otherwise it goes on at the service. */
  cancelOnAbort?: boolean;
}

/** Tools for `generateText`, `streamText` and agents. */
export interface ToolgateTools {
  /** By name. Each call is evaluated, asked and run by the service; `needsApproval` is not set, since people answer there. */
  tools: ToolSet;
  sessionId: string;
  /**
   * For `toolApproval` of AI SDK 7, in a chat that has to show itself that a call will ask. It decides nothing: a call that is approved
   * in the chat asks at the service all the same, so people answer twice. Leave it out unless your chat needs it.
   */
  explainApproval(options: { toolCall: { toolName: string; input: unknown } }): Promise<ExplainedApproval | undefined>;
  /** Ends the connection, after the cancels of aborted calls. Other calls go on at the service. */
  close(): Promise<void>;
}

/** Status of a call, in the form of AI SDK 7. */
export type ExplainedApproval =
  | { type: "not-applicable" }
  | {
      type: "user-approval" | "denied";
      /** Title of the call, for people. */
      reason: string;
    };

/** State that the tools of one connection share. */
interface Connected {
  readonly client: ToolgateClient;
  readonly sessionId: string;
  /** Cancels whose requests are not answered. */
  readonly cancels: Set<Promise<unknown>>;
  readonly cancelOnAbort: boolean;
  /** Fields of each call. */
  readonly fields: Pick<ClientCallOptions, "agent" | "providerId" | "modelId">;
}

/**
 * Lists the tools of a service for the AI SDK. The ID of a call is that of the model's tool call; its results before the end are
 * preliminary ones. A call that a person refuses is no exception: the model reads why.
 */
export async function toolgateTools(options: ToolgateToolsOptions = {}): Promise<ToolgateTools> {
  const { baseUrl: url, token } = options;
  const { agent = "", provider: providerId = "", model: modelId = "", cancelOnAbort = true } = options;
  const client = connect({ ...(url !== undefined && { url }), ...(token !== undefined && { token }) });
  try {
    const { session } = await client.sessions.createSession({ sessionId: options.sessionId ?? "", agent });
    const sessionId = session?.id ?? "";
    const fields = { agent, providerId, modelId };
    const tools: ToolDefinition[] = [];
    for await (const page of pagesOf((page) => client.tools.listTools({ ...page, sessionId, ...fields })))
      tools.push(...page.tools);
    const connected: Connected = { client, sessionId, cancels: new Set(), cancelOnAbort, fields };
    return {
      tools: Object.fromEntries(tools.map((definition) => [definition.name, toolOf(connected, definition)])),
      sessionId,
      async explainApproval({ toolCall: { toolName, input } }) {
        if (!tools.some(({ name }) => name === toolName)) return undefined;
        return await explain(connected, toolName, input as JsonObject);
      },
      async close() {
        await Promise.all(connected.cancels);
        client.close();
      },
    };
  } catch (error) {
    client.close();
    throw error;
  }
}

function toolOf(connected: Connected, definition: ToolDefinition): ToolSet[string] {
  const { name, definitionId, description, inputSchema, annotations } = definition;
  const { $schema: _, ...schema } = inputSchema ?? {};
  const { readOnly = false, idempotent = false, destructive = false, openWorld = false } = annotations ?? {};
  return dynamicTool({
    description,
    inputSchema: jsonSchema(schema),
    metadata: { source: "toolgate", definitionId, annotations: { readOnly, idempotent, destructive, openWorld } },
    execute: (input, { toolCallId, abortSignal }) =>
      runCall(connected, { name, definitionId, callId: toolCallId }, input as JsonObject, abortSignal),
    toModelOutput: ({ output }) => modelOutputOf(output as ToolgateOutput),
  });
}

/** Plans a call, without making it. */
async function explain({ client, sessionId, fields }: Connected, tool: string, input: JsonObject) {
  const { action, title } = await client.tools.planTool({ sessionId, agent: fields.agent ?? "", tool, input });
  if (action === PermissionAction.DENY)
    return { type: "denied", reason: `${title}: a rule of the service denies it` } as const;
  if (action === PermissionAction.ASK) return { type: "user-approval", reason: title } as const;
  return { type: "not-applicable" } as const;
}

/** Makes a call, or attaches to it, and yields what to show of it up to its end. */
async function* runCall(
  connected: Connected,
  { name, ...ids }: { name: string; definitionId: string; callId: string },
  input: JsonObject,
  signal: AbortSignal | undefined,
): AsyncGenerator<ToolgateOutput> {
  const { client, sessionId, cancelOnAbort, fields } = connected;
  signal?.throwIfAborted();
  const cancel = () => cancelCall(connected, ids.callId);
  if (cancelOnAbort) signal?.addEventListener("abort", cancel, { once: true });
  try {
    const leave = cancelOnAbort || !signal ? {} : { signal };
    const follow = createOutputFollower(ids.callId);
    for await (const event of client.stream(name, input, { sessionId, ...ids, ...fields, ...leave })) {
      const output = follow(event);
      if (output) yield output;
    }
  } finally {
    signal?.removeEventListener("abort", cancel);
  }
}

function cancelCall({ client, sessionId, cancels }: Connected, callId: string): void {
  const cancel = client.tools.cancelTool({ sessionId, callId }).catch(() => {
    // The call has ended, or the service is away: then the call's own time limit ends it.
  });
  cancels.add(cancel);
  void cancel.then(() => cancels.delete(cancel));
}

type ModelOutput = Awaited<ReturnType<NonNullable<Tool["toModelOutput"]>>>;
type ModelContent = Extract<ModelOutput, { type: "content" }>["value"][number];

/** Returns what the model reads of a call. */
function modelOutputOf(output: ToolgateOutput): ModelOutput {
  if (output.status === "error") return { type: "error-text", value: output.error };
  if (output.status !== "completed") return { type: "text", value: `The call ${output.callId} has not ended.` };
  const files = output.attachments.flatMap(fileOf);
  if (files.length === 0) return { type: "text", value: output.output };
  return { type: "content", value: [{ type: "text", text: output.output }, ...files] };
}

/** Returns the content of a file that came with the call, in the form of the installed version. */
function fileOf({ mime: mediaType, url, filename }: OutputCompleted["attachments"][number]): ModelContent[] {
  const [, data] = /^data:[^,]*;base64,(.*)$/s.exec(url) ?? [];
  if (data === undefined) return [];
  const named = { mediaType, ...(filename !== undefined && { filename }) };
  if (installed.version.startsWith("6.")) return [{ type: "file-data", data, ...named }];
  return [{ type: "file", data: { type: "data", data }, ...named }];
}

/** The user's AI SDK, read at run time: a bundler would inline the version of the build. */
const installed: { version: string } = createRequire(import.meta.url)("ai/package.json");

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
function createOutputFollower(callId: string): (event: SessionEvent) => ToolgateOutput | undefined {
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
