import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { callName, type HeldCalls, type RedisCallRecords } from "./call-records.ts";
import type { Keys } from "./keys.ts";
import type { Link, StepKeys } from "./link.ts";
import type { Live } from "./live.ts";
import type { RunStep } from "./steps.ts";
import type { Trees } from "./trees.ts";

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

/** Returns the keys that every step of a call needs: its own, and those to append to its session's log. */
export function callStepKeys({ keys, trees }: Pick<RedisCallContext, "keys" | "trees">, ref: CallRef): StepKeys {
  const call = callName(ref);
  return { [`call ${call}`]: keys.tree(ref.root).call(call), ...trees.logKeys(ref.root, [ref.sessionId]) };
}
