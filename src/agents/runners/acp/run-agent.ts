import { realpath } from "node:fs/promises";
import { join, sep } from "node:path";
import { type ClientContext, client, RequestError } from "@agentclientprotocol/sdk";
import * as z from "zod";
import packageJson from "../../../../package.json" with { type: "json" };
import { setNewest } from "../../../core/bounded-map.ts";
import { createLastWords } from "../../../core/last-words.ts";
import { locateProgram } from "../../../core/locate-program.ts";
import { within } from "../../../core/within.ts";
import type { AgentRun, RunUpdate } from "../runner.ts";
import { AgentFailure, type AgentProcess, type ToolAccess } from "./acp-host.ts";
import type { AcpProgram, AcpRuntime, RunProgress } from "./acp-runtime.ts";
import { agentStream } from "./agent-stream.ts";
import { createOwnTools, type OwnTools, permissionParams } from "./own-tools.ts";
import { toolCallUpdate } from "./tool-calls.ts";

/** Runs the program for one run, to its end. Returns undefined if the run was cancelled; never throws. */
export async function runAgent(
  runtime: AcpRuntime,
  run: AgentRun,
  onProgress: (progress: RunProgress) => void,
): Promise<RunUpdate | undefined> {
  const { host, program } = runtime;
  try {
    return await withProgram(runtime, run, onProgress);
  } catch (error) {
    if (run.signal.aborted) return undefined;
    if (!(error instanceof AgentFailure)) host.log("a run of an agent failed", { error, runner: program.name });
    const why = error instanceof AgentFailure ? error.message : "it could not be run; see the log of the service";
    return { type: "failed", message: `The agent runner ${program.name} failed: ${why}` };
  }
}

async function withProgram(
  runtime: AcpRuntime,
  run: AgentRun,
  onProgress: (progress: RunProgress) => void,
): Promise<RunUpdate> {
  const { host, program } = runtime;
  const { command, args, env } = program;
  const cwd = await directoryOf(run, program);
  const file = locateProgram(command, env.PATH);
  if (file === undefined)
    throw new AgentFailure(`its program ${command} is not installed; the operator installs it, or corrects command`);
  const tools = await host.openTools(run);
  try {
    const process = await host.start({ argv: [file, ...args], cwd, env }, run, (title) => onProgress({ title }));
    const words = createLastWords(maxTailCharacters);
    process.stderr.setEncoding("utf8").on("data", words.add);
    process.stderr.on("error", () => undefined);
    try {
      return await converse(runtime, { run, cwd, process, tools, onProgress });
    } catch (error) {
      throw await explained(error, process, redacted(env, words.text));
    } finally {
      await process.kill();
    }
  } finally {
    tools.close();
  }
}

async function directoryOf(run: AgentRun, { cwd: below }: AcpProgram): Promise<string> {
  const cwd = await realpath(join(run.cwd, below)).catch(() => undefined);
  if (cwd === run.cwd || cwd?.startsWith(run.cwd + sep)) return cwd;
  const fact = cwd === undefined ? "does not exist in" : "leads out of";
  throw new AgentFailure(`its directory ${JSON.stringify(below)} ${fact} the workspace ${run.cwd}; correct cwd`);
}

/** Adds to a failure that the program has ended, and what it printed last. */
async function explained(error: unknown, process: AgentProcess, stderr: () => string): Promise<unknown> {
  const ended = await within(500, process.exited, () => undefined);
  if (!(error instanceof AgentFailure) && ended === undefined) return error;
  const what = error instanceof AgentFailure ? error.message : "its program ended before its turn did";
  const how = ended === undefined ? "" : ` (${ended})`;
  const printed = stderr() === "" ? "" : `. It printed: ${JSON.stringify(stderr().slice(-500))}`;
  return new AgentFailure(what + how + printed, { cause: error });
}

/** Returns what a program printed, without the values of its variables, which may be keys. */
function redacted(env: AcpProgram["env"], stderr: () => string): () => string {
  const secrets = Object.entries(env).flatMap(([name, value]) =>
    name === "PATH" || name === "HOME" || value.length < 8 ? [] : [value],
  );
  return () => secrets.reduce((text, secret) => text.replaceAll(secret, "[redacted]"), stderr());
}

const maxTailCharacters = 2_000;

/** A run whose program was started. */
interface StartedRun {
  run: AgentRun;
  cwd: string;
  process: AgentProcess;
  tools: ToolAccess;
  onProgress: (progress: RunProgress) => void;
}

/** The state of a conversation. */
interface Conversation extends StartedRun, Pick<AcpRuntime, "host" | "program" | "times" | "conversations"> {
  agent: ClientContext;
  own: OwnTools;
  answer: AgentAnswer;
  /** The agent's id of its session, once there is one. */
  sessionId: string;
  /** False while an earlier conversation is loaded, whose updates are repeated. */
  isPrompted: boolean;
  /** Ends the conversation. */
  fail(error: AgentFailure): void;
}

/**
 * Has the program work on the prompt, in one turn; throws `AgentFailure` if it does not come to an end. It announces no file system
 * and no terminal: an agent would ask for a change before it has the client write it, so that approvers would be asked twice.
 */
async function converse(runtime: AcpRuntime, started: StartedRun): Promise<RunUpdate> {
  const { host, program, times, traffic, conversations } = runtime;
  const { run, cwd, process } = started;
  const failure = Promise.withResolvers<never>();
  failure.promise.catch(() => undefined);
  // Requests before the prompt have a time of their own.
  const isExpected = () => own.isWaiting() || !conversation.isPrompted;
  const silence = watchSilence(times.silenceMs, isExpected, failure.reject);
  const own: OwnTools = createOwnTools(host, run, cwd, (why) => cancelTurn(conversation, why));
  const app = createClient(() => conversation);
  const connection = app.connect(agentStream(process, { traffic, onMessage: silence.reset }));
  const conversation: Conversation = {
    ...started,
    ...{ host, program, times, conversations, own },
    agent: connection.agent,
    answer: createAnswer(),
    sessionId: "",
    isPrompted: false,
    fail: failure.reject,
  };
  const cancel = () => cancelTurn(conversation, new AgentFailure("its run was cancelled"));
  run.signal.addEventListener("abort", cancel, { once: true });
  if (run.signal.aborted) cancel();
  try {
    return await Promise.race([failure.promise, takeTurn(conversation)]);
  } finally {
    run.signal.removeEventListener("abort", cancel);
    silence.stop();
    connection.close();
    await own.close();
  }
}

function createClient(current: () => Conversation) {
  return client({ name: "toolgate" })
    .onRequest("session/request_permission", readPermissionParams, async ({ params, signal }) => {
      const { own, run, fail } = current();
      try {
        return { outcome: await own.decide(params, AbortSignal.any([signal, run.signal])) };
      } catch (error) {
        if (error instanceof AgentFailure) fail(error);
        throw RequestError.internalError();
      }
    })
    .onNotification("session/update", readUpdate, async ({ params }) => {
      const conversation = current();
      await takeUpdate(conversation, params).catch((error: unknown) => {
        conversation.fail(
          error instanceof AgentFailure ? error : new AgentFailure("an update of it could not be read"),
        );
      });
    });
}

/** A request of another form is refused with an error, which is no approval. */
function readPermissionParams(params: unknown) {
  const read = permissionParams.safeParse(params);
  if (read.success) return read.data;
  throw RequestError.invalidParams();
}

const sessionUpdate = z.object({ sessionId: z.string(), update: z.looseObject({ sessionUpdate: z.string() }) });

/** An update of another form has no effect: later versions of the protocol may send others. */
const readUpdate = (params: unknown) => sessionUpdate.safeParse(params).data;

async function takeUpdate(
  { sessionId, isPrompted, answer, own, onProgress }: Conversation,
  params: z.output<typeof sessionUpdate> | undefined,
): Promise<void> {
  if (params === undefined || !isPrompted) return;
  const { update } = params;
  if (update.sessionUpdate === "agent_message_chunk") {
    if (params.sessionId === sessionId && answer.add(update)) onProgress({ text: answer.text().slice(-2_000) });
    return;
  }
  if (update.sessionUpdate !== "tool_call" && update.sessionUpdate !== "tool_call_update") return;
  const fields = toolCallUpdate.safeParse(update).data;
  if (fields === undefined) return;
  answer.interrupt();
  const { kind, title } = await own.update(fields);
  onProgress({ title: `${kind}: ${title}`.slice(0, 200) });
}

const initialized = z.object({
  protocolVersion: z.number(),
  agentCapabilities: z
    .object({
      loadSession: z.boolean().catch(false),
      mcpCapabilities: z.object({ http: z.boolean().catch(false) }).catch({ http: false }),
      sessionCapabilities: z.looseObject({}).catch({}),
    })
    .catch({ loadSession: false, mcpCapabilities: { http: false }, sessionCapabilities: {} }),
});
const opened = z.object({ sessionId: z.string().min(1).max(1_024) });
const turnEnd = z.object({ stopReason: z.string() });

/** Initializes the agent, opens its session, and sends the prompt. */
async function takeTurn(conversation: Conversation): Promise<RunUpdate> {
  const { agent, times, run, answer, own } = conversation;
  const clientInfo = { name: "toolgate", version: packageJson.version };
  const clientCapabilities = { fs: { readTextFile: false, writeTextFile: false }, terminal: false };
  const about = { protocolVersion: 1, clientCapabilities, clientInfo };
  const { protocolVersion, agentCapabilities } = read(
    initialized,
    await request(agent, "initialize", about, times.startMs),
  );
  if (protocolVersion !== 1) throw new AgentFailure(`it speaks version ${protocolVersion} of the protocol, not 1`);
  conversation.sessionId = await openSession(conversation, agentCapabilities);
  conversation.isPrompted = true;
  run.signal.throwIfAborted();
  const prompt = [{ type: "text", text: run.prompt }];
  const { sessionId } = conversation;
  const { stopReason } = read(turnEnd, await request(agent, "session/prompt", { sessionId, prompt }));
  const notes = [own.summary(), ...(agentCapabilities.mcpCapabilities.http ? [] : [withoutTools])];
  if (stopReason === "end_turn") return { type: "done", text: [answer.text(), ...notes].join("\n\n").trim() };
  const why = stopReasons[stopReason] ?? `its turn ended with ${JSON.stringify(stopReason.slice(0, 40))}`;
  const last = answer.text() === "" ? "" : ` Its last text: ${answer.text().slice(-2_000)}`;
  throw new AgentFailure(`${why}.${last} ${notes.join(" ")}`);
}

const withoutTools = "[Toolgate: its own tools were not offered, since the agent takes no MCP server over HTTP.]";

/** Ends of a turn that are no answer. */
const stopReasons: Readonly<Record<string, string>> = {
  max_tokens: "it reached the limit of tokens of its model",
  max_turn_requests: "it reached its limit of requests to its model",
  refusal: "it refused the task",
  cancelled: "it cancelled its turn",
};

/** Opens a new session of the agent, or the one of an earlier run, with Toolgate as its MCP server. */
async function openSession(
  conversation: Conversation,
  { loadSession, mcpCapabilities, sessionCapabilities }: z.output<typeof initialized>["agentCapabilities"],
): Promise<string> {
  const { agent, conversations, cwd, run, times, tools } = conversation;
  const headers = [{ name: "authorization", value: `Bearer ${tools.token}` }];
  const mcpServers = mcpCapabilities.http ? [{ type: "http", name: "toolgate", url: tools.url, headers }] : [];
  const place = { cwd, mcpServers };
  if (!run.isResumed) {
    const { sessionId } = read(opened, await request(agent, "session/new", place, times.startMs));
    setNewest(conversations, run.childSession, sessionId, maxConversations);
    return sessionId;
  }
  const sessionId = conversations.get(run.childSession);
  if (sessionId === undefined)
    throw new AgentFailure(
      "the earlier conversation is not known since the service started; start a new task, without session_id",
    );
  const method = sessionCapabilities.resume === undefined ? "session/load" : "session/resume";
  if (method === "session/load" && !loadSession)
    throw new AgentFailure("it cannot continue an earlier conversation; start a new task, without session_id");
  await request(agent, method, { sessionId, ...place }, times.startMs);
  return sessionId;
}

const maxConversations = 1_000;

/** Sends a request; an error of the agent and silence are `AgentFailure`. */
async function request(agent: ClientContext, method: string, params: object, ms?: number): Promise<unknown> {
  try {
    const sent = agent.request(method, params);
    if (ms === undefined) return await sent;
    return await within(ms, sent, () => {
      throw new AgentFailure(`it did not answer ${method} within ${ms / 1_000} s`);
    });
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    const signIn = error.code === -32_000 ? "; sign in to it as the user of the service" : "";
    throw new AgentFailure(
      `it answered ${method} with the error ${JSON.stringify(error.message.slice(0, 500))}${signIn}`,
    );
  }
}

function read<T>(schema: z.ZodType<T>, response: unknown): T {
  const result = schema.safeParse(response);
  if (result.success) return result.data;
  throw new AgentFailure("it sent a response that is none of the protocol");
}

/** Asks the agent to end its turn, and ends the conversation soon after whatever it does. */
function cancelTurn({ agent, sessionId, times, fail }: Conversation, why: AgentFailure): void {
  if (sessionId === "") {
    fail(why);
    return;
  }
  agent.notify("session/cancel", { sessionId }).catch(() => undefined);
  setTimeout(fail, times.cancelMs, why).unref();
}

/** Fails a conversation in which nothing arrives for a time, unless an approver is waited for. */
function watchSilence(ms: number, isExpected: () => boolean, fail: (error: AgentFailure) => void) {
  let last = performance.now();
  const timer = setInterval(
    () => {
      if (isExpected()) last = performance.now();
      else if (performance.now() - last > ms) fail(new AgentFailure(`it sent nothing for ${ms / 1_000} s`));
    },
    Math.min(ms / 4, 30_000),
  );
  return {
    reset() {
      last = performance.now();
    },
    stop: () => clearInterval(timer),
  };
}

const textChunk = z.object({
  sessionUpdate: z.literal("agent_message_chunk"),
  content: z.object({ type: z.literal("text"), text: z.string() }),
});

const maxCharacters = 524_288;

/** Text of the agent since its last use of a tool, which is its answer at the end of the turn. */
type AgentAnswer = ReturnType<typeof createAnswer>;

/** Creates an answer without text. */
function createAnswer() {
  let text = "";
  let isInterrupted = false;
  return {
    /** Adds the text of an update; returns false for an update of another kind. */
    add(update: unknown): boolean {
      const chunk = textChunk.safeParse(update).data;
      if (chunk === undefined) return false;
      if (isInterrupted) text = "";
      isInterrupted = false;
      // More is cut: a calling model sees a bounded output in any case.
      if (text.length < maxCharacters) text += chunk.content.text.slice(0, maxCharacters - text.length);
      return true;
    },
    /** Starts again, since what was written was about the next step; keeps it until more is written. */
    interrupt(): void {
      isInterrupted = true;
    },
    text: (): string => text.trim(),
  };
}
