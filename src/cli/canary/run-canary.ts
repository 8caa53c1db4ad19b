import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { Code } from "@connectrpc/connect";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { type AgentUser, agentEnvironment, asAgentUser } from "../connect/agent-user.ts";
import type { CanaryResult } from "../connect/record.ts";
import type { ServerConnection } from "../connection/connection.ts";
import { unlessRefused } from "../failure/failure.ts";
import { type AgentProgram, changesText, sampleInput } from "./agent-programs.ts";
import { type ModelRequest, startMockModel, type ToolUse } from "./mock-model.ts";

/** Dependencies of a canary. */
export interface CanaryOptions {
  readonly agent: AgentProgram;
  /** The program to run, by its path. */
  readonly program: string;
  readonly user: AgentUser;
  readonly mcpName: string;
  /** ID of the credential of the agent's hook: its sessions are those of the canary. */
  readonly principal: string;
  /** A connection that can approve, with which the canary rejects what it asked. */
  readonly approver: ServerConnection;
  /** The directory of work, in a workspace of the service: the agent runs there, and its tools work in a new directory below. */
  readonly directory: string;
  /** True if the hooks stand at the agent's system level: it is then asked to run without them, and must not. */
  readonly isSystem: boolean;
}

/**
 * Runs the agent against a mock model that uses each of its native tools once, with harmless inputs, and rejects each request
 * that arrives. A use that the service recorded asks; one that it did not record ran unasked.
 */
export async function runCanary(options: CanaryOptions): Promise<CanaryResult> {
  const { agent, program, user } = options;
  const directory = asAgentUser(user, () =>
    makeDirectory(options.directory, { "canary.txt": "canary\n", ...agent.files }),
  );
  // Outside of the directory of work, since it has settings of the user.
  const home = agent.homeFiles && asAgentUser(user, () => makeDirectory(tmpdir(), agent.homeFiles?.(user)));
  const script = createScript(options, directory);
  const model = await startMockModel(agent.protocol, script.next);
  const over = new AbortController();
  // Agents use the same IDs, or none, in each run: what an earlier canary asked counts for that one only.
  const earlier = new Set((await ownSessions(options)).map(({ id }) => id));
  // Without anybody who rejects, the agent would wait for an answer.
  const unanswered = new AbortController();
  const rejecting = rejectAll(options, earlier, over.signal).catch((error: unknown) => {
    unanswered.abort();
    return error instanceof Error ? error.message : String(error);
  });
  try {
    const ended = await runAgent(options, model.url, { files: directory, home }, unanswered.signal);
    over.abort();
    const problem = await rejecting;
    const recorded = await recordedCalls(options, earlier);
    const rows = script.rows(recorded);
    const known = rows.map(({ tool }) => tool);
    const disabled = rows.length === 0 ? [] : agent.knownTools.filter((tool) => !known.includes(tool));
    return {
      program,
      checked: Date.now(),
      problem: problem ?? (rows.length === 0 ? ended : script.refusal()),
      rows: [...rows, ...disabled.map((tool) => ({ tool, result: "disabled" as const }))],
    };
  } finally {
    over.abort();
    model.close();
    asAgentUser(user, () => {
      for (const made of [directory, ...(home === undefined ? [] : [home])])
        rmSync(made, { recursive: true, force: true, maxRetries });
    });
  }
}

/** Creates a directory that only its user can read, with files: texts by path. */
function makeDirectory(above: string, files: Readonly<Record<string, string>> = {}): string {
  const made = mkdtempSync(join(above, ".toolgate-canary-"));
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(made, path)), { recursive: true });
    writeFileSync(join(made, path), content);
  }
  return made;
}

/**
 * Creates the script of the model: one use of each native tool. Changes of a text come last, since some agents must read it first; tools
 * that the agent offers only later follow.
 */
function createScript({ agent, mcpName }: CanaryOptions, directory: string) {
  const uses: (ToolUse & { id: string })[] = [];
  const isKnown = (one: { name: string; namespace?: string }) =>
    uses.some(({ tool, namespace }) => tool === one.name && namespace === one.namespace);
  const results = new Map<string, string>();
  return {
    next(request: ModelRequest): ToolUse | undefined {
      const offered = (request.tools ?? []).flatMap((tool) => agent.toolsOf(tool));
      // A request without tools is for a title or a summary.
      if (offered.length === 0) return undefined;
      const added = offered
        .filter((tool) => !isKnown(tool) && !agent.isForeign(tool.namespace ?? tool.name, mcpName))
        .toSorted((one, other) => Number(changesText(one.schema)) - Number(changesText(other.schema)));
      for (const { name, schema, namespace } of added)
        uses.push({
          ...{ id: `canary_${uses.length}`, tool: name, namespace },
          input: agent.samples[name]?.(directory) ?? sampleInput(schema, { directory, mcpName }),
        });
      const step = request.messages.filter(({ role }) => role === "assistant").length;
      const before = uses[step - 1];
      const since = request.messages.slice(request.messages.findLastIndex(({ role }) => role === "assistant") + 1);
      if (before !== undefined) results.set(before.id, JSON.stringify(since));
      return uses[step];
    },
    rows: (recorded: ReadonlySet<string>): CanaryResult["rows"] =>
      uses.map(({ id, tool }) => {
        const reason = agent.withoutEffect?.[tool];
        if (reason !== undefined) return { tool, result: "not verified", reason };
        return { tool, ...outcomeOf(recorded.has(id) || recorded.has(tool), results.get(id)) };
      }),
    /** Returns why the hook refused without a call, if it did. */
    refusal: () => {
      for (const text of results.values()) {
        const found = ownRefusal.exec(text);
        if (found !== null) return found[0].replaceAll('\\"', '"');
      }
      return "";
    },
  };
}

/** Text of a hook that could not ask. */
const ownRefusal = /Toolgate: .*?Nothing was run/;

/** Texts of agents about a use that did not reach the tool. */
const notUsed = /<tool_use_error>|InputValidationError|invalid arguments|No such tool|unavailable tool|not available/i;

function outcomeOf(isRecorded: boolean, result: string | undefined): Omit<CanaryResult["rows"][number], "tool"> {
  if (isRecorded) return { result: "asks" };
  if (result === undefined) return { result: "not verified", reason: "the agent ended before it answered" };
  if (!ownRefusal.test(result) && !notUsed.test(result)) return { result: "runs unasked" };
  const text = textsIn(JSON.parse(result)).join(" ");
  const [, error = text] = /<tool_use_error>(.*?)<\/tool_use_error>/s.exec(text) ?? [];
  const reason = error.replaceAll(/\s+/g, " ").trim();
  return { result: "not verified", reason: reason.length > maxReason ? `${reason.slice(0, maxReason)}…` : reason };
}

/** Returns the texts of messages: whatever the protocol, they are the `content` of something. */
function textsIn(value: unknown): string[] {
  if (Array.isArray(value)) return value.flatMap(textsIn);
  if (typeof value !== "object" || value === null) return [];
  const { content, text } = value as { content?: unknown; text?: unknown };
  const own = [content, text].filter((each) => typeof each === "string");
  return [...own, ...textsIn(content)];
}

/** Runs the agent to its end, as its user, or until the signal stops it; returns the end of what it printed. */
async function runAgent(
  { agent, program, user, directory: cwd, isSystem }: CanaryOptions,
  url: string,
  { files, home }: { files: string; home: string | undefined },
  signal: AbortSignal,
): Promise<string> {
  const { uid, gid } = user;
  const args = [...(agent.settings?.(url) ?? []), ...agent.args(files), ...(isSystem ? agent.withoutHooks : [])];
  const child = spawn(program, args, {
    cwd,
    env: {
      ...agentEnvironment(user),
      ...(home !== undefined && { HOME: home }),
      TERM: "dumb",
      ...agent.env(url, user),
    },
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
    ...(process.getuid?.() === 0 && uid !== 0 && { uid, gid }),
  });
  let printed = "";
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (piece: Buffer) => {
      printed = (printed + piece.toString()).slice(-2_000);
    });
  // Its own process group, so that nothing that it started outlives it.
  const stop = () => {
    try {
      if (child.pid !== undefined) process.kill(-child.pid, "SIGKILL");
    } catch {
      // It has ended.
    }
  };
  const timer = setTimeout(stop, maxRunMs);
  signal.addEventListener("abort", stop);
  const ended = Promise.withResolvers<string>();
  child.on("error", (error) => ended.resolve(error.message));
  child.on("close", () => ended.resolve(printed.trim() || "it printed nothing"));
  try {
    return await ended.promise;
  } finally {
    clearTimeout(timer);
    stop();
  }
}

/** Rejects the requests of the canary until it is over. Throws if one cannot be rejected. */
async function rejectAll(
  { approver, principal }: CanaryOptions,
  earlier: ReadonlySet<string>,
  signal: AbortSignal,
): Promise<undefined> {
  const reject = async (ask: PermissionRequest) => {
    // The agent may be at work in other sessions.
    if (earlier.has(ask.sessionId)) return;
    const { session } = await approver.sessions.getSession({ sessionId: ask.sessionId });
    if (session?.owner === principal) {
      // The rejection of one closes the others of its call.
      const rejected = approver.reply(ask, "reject", { message: "canary of `toolgate connect`" });
      await unlessRefused(rejected, Code.FailedPrecondition);
    }
  };
  try {
    for await (const ask of approver.asks({ signal })) await reject(ask);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** Returns the IDs of the calls that the service recorded for the canary, and the names of their tools: some agents have no IDs. */
async function recordedCalls(options: CanaryOptions, earlier: ReadonlySet<string>): Promise<ReadonlySet<string>> {
  const own = (await ownSessions(options)).filter(({ id }) => !earlier.has(id));
  const { tools } = options.approver;
  const pagesOfSession = ({ id }: { id: string }) =>
    Array.fromAsync(pagesOf((page) => tools.listToolParts({ ...page, sessionId: id })));
  const pages = await Promise.all(own.map(pagesOfSession));
  return new Set(pages.flat().flatMap(({ parts }) => parts.flatMap(({ callId, tool }) => [callId, ownName(tool)])));
}

/** Returns the sessions of the agent's hook: other agents may have created any number since. */
async function ownSessions({ approver, principal }: CanaryOptions) {
  const pages = await Array.fromAsync(pagesOf((page) => approver.sessions.listSessions(page)));
  return pages.flatMap(({ sessions }) => sessions.filter(({ owner }) => owner === principal));
}

/** Returns the agent's own name of a tool `KIND:Tool`. */
const ownName = (tool: string) => tool.slice(tool.indexOf(":") + 1);

const maxRunMs = 180_000;
/** Tries to remove a directory into which a program that is ending still writes. */
const maxRetries = 5;
/** Characters of an agent's refusal that are shown. */
const maxReason = 200;
