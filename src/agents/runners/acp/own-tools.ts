import { isDeepStrictEqual } from "node:util";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import * as z from "zod";
import { newId } from "../../../core/ids.ts";
import type { AgentRun } from "../runner.ts";
import { type AcpHost, AgentFailure, type OwnToolDecision, type OwnToolResult } from "./acp-host.ts";
import {
  type AcpToolCall,
  type AcpToolCallUpdate,
  delegatedUse,
  requestedCall,
  runsOtherInput,
  toolCallUpdate,
  updateToolCall,
} from "./tool-calls.ts";

/** An option of a permission request. */
const permissionOption = z.object({ optionId: z.string(), kind: z.string().catch("") });

/** Params of `session/request_permission`. */
export const permissionParams = z.object({
  toolCall: toolCallUpdate,
  options: z.array(permissionOption).max(64),
});

type PermissionParams = z.output<typeof permissionParams>;

/** The answer to a permission request. */
export type PermissionOutcome = { outcome: "selected"; optionId: string } | { outcome: "cancelled" };

/** A use that an approver allowed and whose result is not known. */
interface Begun {
  assignment: string;
  rawInput: JsonObject;
}

/** A use of a tool of the agent in this run. */
interface TrackedCall {
  call: AcpToolCall;
  /** Number of permission requests about it. */
  askedCount: number;
  begun: Begun[];
}

/** The agent's own tools in one run: what they ask, and their outcomes. */
export type OwnTools = ReturnType<typeof createOwnTools>;

/** Uses of tools that are tracked at the same time; a further one fails the run. */
const maxTracked = 1_000;
const maxEnded = 10_000;
/** Requests of one run that could not be judged and are logged: an agent can repeat them without end. */
const maxLogged = 10;

/** Creates the record of a run. `cancelTurn` is called where an agent leaves no way to refuse. */
export function createOwnTools(host: AcpHost, run: AgentRun, cwd: string, cancelTurn: (why: AgentFailure) => void) {
  const tracked = new Map<string, TrackedCall>();
  const ended = new Set<string>();
  const unasked = new Map<string, number>();
  const refused: string[] = [];
  let allowedCount = 0;
  let waitingCount = 0;
  let problemCount = 0;

  function track(id: string): TrackedCall | undefined {
    const found = tracked.get(id);
    if (found) return found;
    if (tracked.size < maxTracked) return undefined;
    throw new AgentFailure(`it uses more than ${maxTracked} tools at the same time`);
  }

  /** Takes an update of a use; reports the result if it has one. */
  async function update(fields: AcpToolCallUpdate): Promise<AcpToolCall> {
    const before = track(fields.toolCallId);
    const call = updateToolCall(before?.call, fields);
    const entry: TrackedCall = { askedCount: 0, begun: [], ...before, call };
    const isOver = call.status === "completed" || call.status === "failed";
    // Some agents repeat the last update.
    if (ended.has(call.id) && before === undefined) return call;
    if (isOver) end(call.id);
    else tracked.set(call.id, entry);
    if (isOver && entry.askedCount === 0 && !isToolgateTool(call)) count(unasked, call.kind);
    if (isOver) await report(entry, resultOf(call));
    return call;
  }

  function end(id: string): void {
    tracked.delete(id);
    if (ended.size === maxEnded) ended.clear();
    ended.add(id);
  }

  async function report({ begun, call }: TrackedCall, result: OwnToolResult): Promise<void> {
    for (const { assignment, rawInput } of begun.splice(0)) {
      const ranInput = runsOtherInput(rawInput, call.rawInput) ? call.rawInput : undefined;
      await host.finish(run, assignment, { ...result, ranInput }).catch((error: unknown) => {
        host.log("a result of an agent's tool could not be recorded", { error, tool: call.kind });
      });
    }
  }

  /** Judges a permission request; every way that is no approval of exactly this use refuses it. */
  async function decide({ toolCall, options }: PermissionParams, signal: AbortSignal): Promise<PermissionOutcome> {
    const before = track(toolCall.toolCallId);
    const call = requestedCall(before?.call, toolCall);
    const entry: TrackedCall = before ?? {
      call: updateToolCall(undefined, toolCall),
      askedCount: 0,
      begun: [],
    };
    entry.askedCount += 1;
    tracked.set(call.id, entry);
    const allowing = allowingOption(options);
    waitingCount += 1;
    const decision = await judged(call, allowing, signal).finally(() => {
      waitingCount -= 1;
    });
    if (decision.case === "begun" && allowing !== undefined) {
      allowedCount += 1;
      entry.begun.push({ assignment: decision.assignment, rawInput: call.rawInput });
      return { outcome: "selected", optionId: allowing };
    }
    // The one case in which the turn is over: it was cancelled, or the agent has withdrawn the request.
    if (signal.aborted) return { outcome: "cancelled" };
    refused.push(call.kind);
    const refusing = refusingOption(options);
    if (refusing !== undefined) return { outcome: "selected", optionId: refusing };
    cancelTurn(new AgentFailure("it offered no way to refuse one of its requests, so its turn was cancelled"));
    return { outcome: "cancelled" };
  }

  async function judged(
    call: AcpToolCall,
    allowing: string | undefined,
    signal: AbortSignal,
  ): Promise<OwnToolDecision> {
    if (allowing === undefined) return { case: "refused", message: "the agent offers no approval of a single use" };
    const use = { callId: newId("call", Date.now()), cwd, ...delegatedUse(call) };
    try {
      const decision = await host.begin(run, use, signal);
      if (decision.case === "refused") return decision;
      const why = signal.aborted ? noLongerAsked : isDeepStrictEqual(decision.input, use.input) ? "" : edited;
      if (why === "") return decision;
      await host.finish(run, decision.assignment, { result: { case: "error", value: why } });
      return { case: "refused", message: why };
    } catch (error) {
      if (signal.aborted)
        await host.cancel(run, use.callId, "The agent no longer waits for the answer.").catch(() => {});
      else if (++problemCount <= maxLogged)
        host.log("a permission request of an agent was refused, since it could not be judged", { error });
      return { case: "refused", message: "it could not be judged" };
    }
  }

  return {
    update,
    decide,
    /** True while an approver is waited for: the agent is silent then. */
    isWaiting: () => waitingCount > 0,
    /** Ends what the agent did not report. */
    async close(): Promise<void> {
      const value = "The agent ended without reporting the outcome of this use. Look at what it did.";
      for (const entry of tracked.values()) await report(entry, { result: { case: "error", value } });
    },
    /** Describes which uses asked here and which did not. */
    summary: () => summaryOf({ allowedCount, refused, unasked }),
  };
}

const noLongerAsked = "The agent no longer waited for the answer. Nothing was run.";
const edited = "The input was edited, and an ACP agent cannot run an edited input. Nothing was run.";

/** Recognizes uses of Toolgate's own tools, which it judges itself. Only the summary depends on it. */
function isToolgateTool({ name, title }: AcpToolCall): boolean {
  return /^(mcp__)?toolgate_/.test(name || title);
}

function resultOf({ status, content, rawOutput }: AcpToolCall): OwnToolResult {
  const text = content.join("\n") || textOf(rawOutput);
  const exit = exitIn(rawOutput);
  return {
    result: { case: status === "completed" ? "output" : "error", value: text },
    ...(exit !== undefined && { exit }),
  };
}

const textOf = (output: JsonValue | undefined) =>
  output === undefined ? "" : typeof output === "string" ? output : JSON.stringify(output);

const exitCode = z.int().min(0).max(255);
const withExit = z.union([
  z.object({ metadata: z.object({ exit: exitCode }) }).transform(({ metadata }) => metadata.exit),
  z.object({ exit_code: exitCode }).transform((output) => output.exit_code),
]);

function exitIn(output: JsonValue | undefined): number | undefined {
  return withExit.safeParse(output).data;
}

function summaryOf({
  allowedCount,
  refused,
  unasked,
}: {
  allowedCount: number;
  refused: readonly string[];
  unasked: ReadonlyMap<string, number>;
}): string {
  const refusals = new Map<string, number>();
  for (const kind of refused) count(refusals, kind);
  const asked = `${allowedCount + refused.length} uses of the agent's own tools asked here`;
  const why = refused.length === 0 ? "" : `, of which ${refused.length} were refused (${listed(refusals)})`;
  const others =
    unasked.size === 0 ? "none that it reported ran without asking" : `ran without asking: ${listed(unasked)}`;
  return `[Toolgate: ${asked}${why}; ${others}. What the agent does without asking or reporting is neither judged nor recorded.]`;
}

function count(counts: Map<string, number>, kind: string): void {
  const known = /^[a-z_]{1,20}$/.test(kind) ? kind : "other";
  counts.set(known, (counts.get(known) ?? 0) + 1);
}

const listed = (counts: ReadonlyMap<string, number>) =>
  [...counts].map(([kind, times]) => (times === 1 ? kind : `${kind} ×${times}`)).join(", ");

type PermissionOption = z.output<typeof permissionOption>;

/**
 * Returns the option that allows this one use; undefined if there is none. `allow_always` is never taken for it: the grant would
 * live in the agent, beyond policy and revocation.
 */
function allowingOption(options: readonly PermissionOption[]): string | undefined {
  return unambiguous(options, "allow_once");
}

/** Returns an option that refuses; undefined if there is none. */
function refusingOption(options: readonly PermissionOption[]): string | undefined {
  return unambiguous(options, "reject_once") ?? unambiguous(options, "reject_always");
}

/** Returns the first option of a kind whose id no option of another kind has: the id is all that the agent gets. */
function unambiguous(options: readonly PermissionOption[], wanted: string): string | undefined {
  return options.find(
    ({ kind, optionId }) =>
      kind === wanted && options.every((other) => other.optionId !== optionId || other.kind === wanted),
  )?.optionId;
}
