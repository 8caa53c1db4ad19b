import { randomBytes } from "node:crypto";
import type { DecisionRecord } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { encodeDecision } from "../parts.ts";
import { callName, type HeldCalls, type RedisCallRecords } from "./call-records.ts";
import type { RedisExports } from "./exports.ts";
import type { Keys } from "./keys.ts";
import type { Link, StepBytes, StepKeys } from "./link.ts";
import type { Live } from "./live.ts";
import type { LoggedEvent, RedisLog } from "./log.ts";
import type { Followed, RedisNews } from "./news.ts";
import { bytes, inPortions, number, type Reply, replyList, text } from "./reply.ts";
import type { StepName } from "./scripts.ts";
import type { Trees } from "./trees.ts";

/** Runs a transition in a tree: one step, whose news this replica publishes at once and the others by message. */
export type RunStep = (
  name: StepName,
  root: string,
  keys: StepKeys,
  values?: object,
  bytes?: StepBytes,
  decisions?: readonly DecisionRecord[],
) => Promise<Reply>;

/** Gives each step an operation id, so that a step that is sent again is applied once and answered alike. */
export function createSteps(options: {
  link: Link;
  keys: Keys;
  news: RedisNews;
  log: RedisLog;
  followed: Followed;
  exports: Pick<RedisExports, "append">;
}): RunStep {
  const { link, keys, news, log, followed, exports } = options;
  const processId = randomBytes(12).toString("base64url");
  let count = 0;

  /** Returns how many bytes of events the answer and the message to other replicas may have, where sessions have subscribers. */
  function eventLimits(names: StepKeys): { echo?: number; carry?: number } {
    const sessions = Object.keys(names).flatMap((name) =>
      name.startsWith("session ") ? [name.slice("session ".length)] : [],
    );
    return {
      ...(sessions.some(news.hasSubscriber) && { echo: maxEchoBytes }),
      // The message leaves before the copies have the events.
      ...(!link.isStrict() && sessions.some(followed.has) && { carry: maxCarriedBytes }),
    };
  }

  return async (name, root, names, values, given, decisions = []) => {
    const tree = keys.tree(root);
    const id = `${processId}-${(count++).toString(36)}`;
    const [opKeys, opValues] = answeredByCall.has(name) ? [{}, { op: id }] : [{ op: tree.operation(id) }, {}];
    const encoded = decisions.map(encodeDecision);
    const decided = encoded.map(({ sha256 }) => sha256);
    const contents = Object.fromEntries(encoded.map(({ content }, i) => [`decision ${i + 1}`, content]));
    const all = { ...opKeys, tree: tree.tree, ...(decided.length > 0 && { audit: tree.audit }), ...names };
    if (decided.length > 0) exports.append(root);
    const sent = { ...values, ...opValues, decided, ...eventLimits(names) };
    const [result, changes, time, events] = replyList(await link.run(name, all, sent, { ...given, ...contents }));
    log.remember(number(time), inPortions(replyList(events), 3).map(decodeAppended));
    const pairs = replyList(changes);
    for (let index = 0; index < pairs.length; index += 2) news.publish(text(pairs[index]), number(pairs[index + 1]));
    return result ?? null;
  };
}

/** Steps of one call that store their answer with it. A later step of the call replaces it, after which this one is refused. */
const answeredByCall: ReadonlySet<StepName> = new Set(["open_call", "start_call", "finish_call"]);

/** Events of a step up to this size are part of its answer; subscribers read larger ones from the log. */
const maxEchoBytes = 64 * 1024;
/** Events of a step up to this size are part of the message to replicas that follow their session. */
const maxCarriedBytes = 4 * 1024;

const decodeAppended = ([sessionId, seq, event]: readonly Reply[]): LoggedEvent => ({
  sessionId: text(sessionId),
  seq: number(seq),
  bytes: bytes(event) ?? Buffer.alloc(0),
});

/** State that the transitions of a call need. */
export interface RedisCallContext {
  readonly link: Link;
  readonly keys: Keys;
  readonly trees: Trees;
  readonly live: Live;
  readonly records: RedisCallRecords;
  readonly now: () => number;
  readonly held: HeldCalls;
  readonly runStep: RunStep;
}

/** Returns the key of the parent of a call that ends, if that waits for it: the parent counts its open children. */
export function parentKeys({ keys }: Pick<RedisCallContext, "keys">, ref: CallRef, part: ToolPart): StepKeys {
  const { parentCallId: callId, background } = part;
  if (callId === "" || background) return {};
  return { [`parent ${callName(ref)}`]: keys.tree(ref.root).call(callName({ ...ref, callId })) };
}

/** Returns the keys that every step needs that may settle asks of a tree. */
export function settleKeys({ keys }: Pick<RedisCallContext, "keys">, root: string): StepKeys {
  const { settled, asks, deadlines, notices, noticeDue, notified } = keys.tree(root);
  return { settled, asks, deadlines, notices, noticeDue, notified };
}

/** Returns the keys that every step of a call needs: its own, and those to append to its session's log. */
export function callStepKeys({ keys, trees }: Pick<RedisCallContext, "keys" | "trees">, ref: CallRef): StepKeys {
  const call = callName(ref);
  return { [`call ${call}`]: keys.tree(ref.root).call(call), ...trees.logKeys(ref.root, [ref.sessionId]) };
}
