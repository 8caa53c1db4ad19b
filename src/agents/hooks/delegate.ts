import { setTimeout } from "node:timers/promises";
import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import type { ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { BeginCallRequestSchema, FinishCallRequestSchema } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { canonicalJson } from "../../core/json.ts";
import { sha256Hex } from "../../core/sha256.ts";

/** A use of a tool by an agent, as BeginCall takes it. */
export type DelegatedUse = MessageInitShape<typeof BeginCallRequestSchema> & {
  kind: string;
  foreignSession: string;
  foreignTool: string;
  input: JsonObject;
};

/** A result of a tool, as FinishCall takes it. */
export type DelegatedResult = Omit<MessageInitShape<typeof FinishCallRequestSchema>, "assignment" | "$typeName">;

/**
 * The decision about a use, or `waiting` if there is none yet: what connectors need of the outcome of BeginCall. They import no
 * message at run time, since each use of a tool starts a program that would load them.
 */
export type UseDecision =
  | { case: "begun"; value: { assignment: string; input?: JsonObject | undefined } }
  | { case: "refused"; value: { reason: ToolErrorReason; message: string } }
  | { case: "waiting"; value: { permissions: readonly { id: string }[] } };

/** The answer to BeginCall. */
export interface BegunUse {
  outcome: UseDecision | { case: undefined };
}

/** The two rpcs of delegated calls. */
export interface DelegatedCalls {
  begin(request: MessageInitShape<typeof BeginCallRequestSchema>): Promise<BegunUse>;
  finish(request: MessageInitShape<typeof FinishCallRequestSchema>): Promise<unknown>;
}

/** Memory of decisions between the hooks of one use. Only the process that asks and the service may read it: it has secrets. */
export interface DecisionMemory {
  put(key: string, decision: UseDecision): Promise<void>;
  get(key: string): Promise<{ decision: UseDecision; ageMs: number } | undefined>;
  remove(key: string): Promise<void>;
}

/** Dependencies of a connector. */
export interface DelegationContext {
  calls: DelegatedCalls;
  memory: DecisionMemory;
  /** Time until which a decision must be there, on the clock of `performance.now()`. */
  endsAt: number;
}

/** Dependencies of a hook. */
export interface HookContext extends DelegationContext {
  /** Checks whether a tool is one of our own MCP server; the service judges its calls itself. */
  isOwnTool(tool: string): Promise<boolean>;
}

/** The approval was given out to another request for the same use. */
export class AlreadyBegunError extends Error {
  override name = "AlreadyBegunError";
}

/** A response that is none of the contract's. */
export class NotADecision extends Error {
  override name = "NotADecision";
}

/**
 * Requests a decision and remembers it; while the call waits it repeats the request, until the time is over. Of two hooks of one
 * use, such as one of the user and one of the project, the first gets the approval and the other one takes it from the memory. A
 * use that was not answered in time and is repeated waits for the same permission requests.
 */
export async function requestDecision(context: DelegationContext, use: DelegatedUse): Promise<UseDecision> {
  const { memory } = context;
  let decision: UseDecision;
  try {
    decision = (await resumeDecision(context, use)) ?? (await waitForDecision(context, use));
  } catch (error) {
    const twin = error instanceof AlreadyBegunError ? await twinDecision(memory, use) : undefined;
    if (twin === undefined) throw error;
    return twin;
  }
  if (decision.case === "waiting") {
    await memory.put(waitingKey(use), decision);
    return decision;
  }
  const ran = decision.case === "begun" ? (decision.value.input ?? {}) : use.input;
  await Promise.all([memory.put(idKey(use), decision), memory.put(inputKey(use, ran), decision)]);
  return decision;
}

/** Returns the decision on an earlier use that was the same and waits; undefined if there is none, or it is over without an answer. */
async function resumeDecision(context: DelegationContext, use: DelegatedUse): Promise<UseDecision | undefined> {
  const { memory } = context;
  const earlier = (await memory.get(waitingKey(use)))?.decision;
  const [request] = earlier?.case === "waiting" ? earlier.value.permissions : [];
  if (request === undefined) return undefined;
  try {
    const decision = await waitForDecision(context, { ...use, resume: request.id });
    if (decision.case === "waiting") return decision;
    await memory.remove(waitingKey(use));
    const isAnswer = decision.case === "begun" || decision.value.reason === rejected;
    return isAnswer ? decision : undefined;
  } catch (error) {
    await memory.remove(waitingKey(use));
    return error instanceof AlreadyBegunError ? await twinDecision(memory, use) : undefined;
  }
}

async function waitForDecision({ calls, endsAt }: DelegationContext, use: DelegatedUse): Promise<UseDecision> {
  let decision = decisionIn(await calls.begin({ ...use, waitMs: 0 }));
  while (decision.case === "waiting") {
    const leftMs = Math.floor(endsAt - performance.now());
    if (leftMs < 1) return decision;
    decision = decisionIn(await calls.begin({ ...use, waitMs: Math.min(leftMs, maxRoundMs) }));
  }
  return decision;
}

/** Waits for the approval that another hook of the same use got a moment ago. */
async function twinDecision(memory: DecisionMemory, use: DelegatedUse): Promise<UseDecision | undefined> {
  for (let i = 0; i < maxTwinReads; i++) {
    const found = await memory.get(idKey(use));
    if (found?.decision.case === "begun" && found.ageMs < maxTwinAgeMs) return found.decision;
    await setTimeout(twinReadMs);
  }
  return undefined;
}

/** Returns the decision of the same session, tool and input, if it is recent. */
export async function recentDecision(
  { memory }: DelegationContext,
  use: DelegatedUse,
  maxAgeMs: number,
): Promise<UseDecision | undefined> {
  const found = await memory.get(inputKey(use, use.input));
  return found !== undefined && found.ageMs <= maxAgeMs ? found.decision : undefined;
}

/**
 * Reports the result of a use that began; without a remembered decision nothing is known to report. An agent without IDs of its
 * uses is taken to report on the last one of the tool if none had the input that ran.
 */
export async function reportResult(
  { calls, memory }: DelegationContext,
  use: DelegatedUse,
  result: DelegatedResult,
): Promise<void> {
  const keys = [idKey(use), inputKey(use, use.input), ...(use.foreignCallId ? [] : [lastKey(use)])];
  for (const key of keys) {
    const decision = (await memory.get(key))?.decision;
    if (decision?.case !== "begun") continue;
    await calls.finish({ ...result, assignment: decision.value.assignment, inputDigest: digestOf(use.input) });
    await Promise.all(keys.map((each) => memory.remove(each)));
    return;
  }
}

/** Remembers the decision on the last use of a tool, for an agent without IDs of its uses. */
export const rememberLast = ({ memory }: DelegationContext, use: DelegatedUse, decision: UseDecision): Promise<void> =>
  memory.put(lastKey(use), decision);

/** Checks whether an approver or a hook changed the input. */
export function isEdited(use: DelegatedUse, input: JsonObject): boolean {
  return canonicalJson(use.input) !== canonicalJson(input);
}

/** Cuts a text to the size that FinishCall takes, and marks the cut. */
export function cutOutput(text: string): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= maxOutputBytes) return bytes.toString();
  const mark = `\n[cut by the sender: ${bytes.length} bytes in all]`;
  // A character that the cut splits is dropped.
  return bytes.toString("utf8", 0, maxOutputBytes - mark.length).replace(/\uFFFD+$/, "") + mark;
}

function decisionIn({ outcome }: BegunUse): UseDecision {
  if (outcome.case !== undefined) return outcome;
  throw new NotADecision("the service answered without a decision; it may be of another version");
}

function idKey({ kind, foreignSession, foreignCallId = "" }: DelegatedUse): string {
  return canonicalJson([kind, foreignSession, "id", foreignCallId]);
}

function inputKey({ kind, foreignSession, foreignTool }: DelegatedUse, input: JsonObject): string {
  return canonicalJson([kind, foreignSession, "input", foreignTool, input]);
}

function lastKey({ kind, foreignSession, foreignTool }: DelegatedUse): string {
  return canonicalJson([kind, foreignSession, "last", foreignTool]);
}

function waitingKey({ kind, foreignSession, foreignTool, input, cwd }: DelegatedUse): string {
  return canonicalJson([kind, foreignSession, "waiting", foreignTool, input, cwd ?? ""]);
}

function digestOf(input: JsonObject): string {
  return sha256Hex(canonicalJson(input));
}

/** Time of one request: below what proxies allow a silent response to take. */
const maxRoundMs = 50_000;
const twinReadMs = 100;
const maxTwinReads = 20;
/** Age up to which an approval is that of a hook that runs at the same time. */
const maxTwinAgeMs = 10_000;
/** The reason of an approver's refusal; its enum would bring all messages. */
export const rejected: typeof ToolErrorReason.REJECTED = 5;
/** Size of a reported output, as the contract limits it. */
const maxOutputBytes = 524_288;
