import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallRecord, CallStore } from "../../call/ports.ts";
import type { CallRef } from "../../core/call-ref.ts";
import { noSuchSession } from "../../core/request-error.ts";
import { checkEnded } from "../parts.ts";
import { sessionClosed, tooManyAsks, tooManyCalls } from "../refusals.ts";
import { callEnded, encodeWithdrawal } from "./asks.ts";
import { callName, type RedisCallRecords } from "./call-records.ts";
import { encodeEvent } from "./events.ts";
import type { HeldCalls } from "./held-calls.ts";
import type { Keys } from "./keys.ts";
import type { StepBytes, StepKeys } from "./link.ts";
import type { Live } from "./live.ts";
import { encodePart } from "./parts.ts";
import { fields, number, replyList, text } from "./reply.ts";
import type { RunStep } from "./steps.ts";
import type { Trees } from "./trees.ts";

/** The transitions of a call, each one script. */
export function createRedisCalls(options: {
  keys: Keys;
  trees: Trees;
  live: Live;
  records: RedisCallRecords;
  now: () => number;
  held: HeldCalls;
  runStep: RunStep;
}) {
  const { keys, trees, live, records, now, held, runStep } = options;

  /** What every step of a call needs: its key, and those to append to its session's log. */
  function namesOf(ref: CallRef): StepKeys {
    const call = callName(ref);
    return { [`call ${call}`]: keys.tree(ref.root).call(call), ...trees.logKeys(ref.root, [ref.sessionId]) };
  }

  async function openCall(
    opened: Parameters<CallStore["openCall"]>[0],
  ): Promise<{ record: CallRecord; created: boolean }> {
    const { ref, spec, owner, leaseMs, maxOpenCalls, maxRepeats } = opened;
    const { root, sessionId, callId } = ref;
    const tree = keys.tree(root);
    const name = callName(ref);
    const pending = encodePart(sessionId, name, opened.part);
    const start = opened.start && encodePart(sessionId, "start", opened.start);
    const bytes = { ...pending.bytes, ...start?.bytes };
    const names = { calls: tree.calls(sessionId), open: tree.open(sessionId), leases: tree.leases, ...namesOf(ref) };
    const values = {
      ...{ session: sessionId, callId, name, owner, leaseMs, maxOpenCalls, maxRepeats },
      request: spec.requestDigest,
      spec: JSON.stringify(spec),
    };

    for (let generation = await live.enter(root); ; ) {
      const [result, value, last, repeats, begun] = replyList(
        await runStep("open_call", root, names, { ...values, generation }, bytes, opened.decisions),
      );
      switch (text(result)) {
        case "opened": {
          const openedSeq = number(value);
          held.add(owner, ref);
          const started = number(begun);
          const { part: written } = started === 1 && start ? start : pending;
          const part = { ...written, revision: BigInt(number(last)) };
          const versions = { version: 1 + started, epoch: 1, attempts: started, repeats: number(repeats) };
          return { record: { ref, part, spec, openedSeq, owner, ...versions }, created: true };
        }
        case "generation":
          generation = await live.reenter(root, number(value));
          continue;
        case "no session":
          throw noSuchSession(sessionId);
        case "closed":
          throw sessionClosed(sessionId);
        case "full":
          throw tooManyCalls(sessionId, maxOpenCalls);
        default: {
          const record = await records.find(ref);
          if (record !== undefined) return { record, created: false };
        }
      }
    }
  }

  async function openAsks(opened: Parameters<CallStore["openAsks"]>[0]): Promise<boolean> {
    const { fence, version, rulesVersion, withdraw, message, maxOpenAsks } = opened;
    const { ref, owner, epoch } = fence;
    const { root, sessionId } = ref;
    const tree = keys.tree(root);
    const lineage = await trees.lineage(root, sessionId);
    const result = await runStep(
      "open_asks",
      root,
      {
        ...namesOf(ref),
        ...trees.logKeys(root, lineage),
        ...{
          asked: tree.asked,
          settled: tree.settled,
          callOf: tree.callOf,
          asks: tree.asks,
          deadlines: tree.deadlines,
        },
      },
      {
        session: sessionId,
        name: callName(ref),
        ...{ owner, epoch, version, rulesVersion, withdraw, maxOpenAsks },
        lineage: { [sessionId]: lineage },
        asks: opened.asks.map(({ id, expires }) => ({ id, expires })),
      },
      {
        withdrawn: encodeWithdrawal(ref, message, now()),
        ...Object.fromEntries(
          opened.asks.map((value) => [`asked ${value.id}`, encodeEvent(sessionId, { case: "permissionAsked", value })]),
        ),
      },
      opened.decisions,
    );
    if (text(result) === "full") throw tooManyAsks(root, maxOpenAsks);
    if (text(result) !== "opened") return false;
    await live.sooner(root, Math.min(...opened.asks.map(({ expires }) => expires)));
    return true;
  }

  async function prepareCall({ fence, part }: Parameters<CallStore["prepareCall"]>[0]): Promise<boolean> {
    const { ref, owner, epoch } = fence;
    const name = callName(ref);
    const bytes = part && encodePart(ref.sessionId, name, part).bytes;
    const values = { session: ref.sessionId, name, owner, epoch };
    return text(await runStep("prepare_call", ref.root, namesOf(ref), values, bytes)) === "prepared";
  }

  async function noteCall({ fence, hooked, decisions }: Parameters<CallStore["noteCall"]>[0]): Promise<boolean> {
    const { ref, owner, epoch } = fence;
    const values = { name: callName(ref), owner, epoch, hooked };
    return text(await runStep("note_call", ref.root, namesOf(ref), values, {}, decisions)) === "noted";
  }

  async function startCall(started: Parameters<CallStore["startCall"]>[0]): Promise<"started" | "fenced" | "retry"> {
    const { ref, owner, epoch } = started.fence;
    const { version, rulesVersion, grantIds = [] } = started;
    const { grants, used } = keys.tree(ref.root);
    const name = callName(ref);
    const { bytes } = encodePart(ref.sessionId, name, started.part);
    const values = { session: ref.sessionId, name, owner, epoch, version, rulesVersion, grantIds };
    const names = { ...namesOf(ref), grants, used };
    const result = text(await runStep("start_call", ref.root, names, values, bytes, started.decisions));
    return result === "started" || result === "retry" ? result : "fenced";
  }

  async function recordEvents(...[fence, events]: Parameters<CallStore["recordEvents"]>): Promise<boolean> {
    const { ref, owner, epoch } = fence;
    const bytes: StepBytes = {};
    for (const [index, event] of events.entries()) {
      const told =
        event.$typeName === "opencode.tool.v1.ToolProgress"
          ? { case: "progress" as const, value: event }
          : { case: "output" as const, value: event };
      bytes[`event ${index + 1}`] = encodeEvent(ref.sessionId, told);
    }
    const values = { session: ref.sessionId, name: callName(ref), owner, epoch, count: events.length };
    return text(await runStep("record_events", ref.root, namesOf(ref), values, bytes)) === "recorded";
  }

  async function finishCall({
    ref,
    guard,
    part: ended,
    decisions,
  }: Parameters<CallStore["finishCall"]>[0]): Promise<ToolPart | undefined> {
    checkEnded(ended);
    const { root, sessionId, callId } = ref;
    const tree = keys.tree(root);
    const name = callName(ref);
    const lineage = await trees.lineage(root, sessionId);
    const { part, bytes } = encodePart(sessionId, name, ended);
    const guards = "fence" in guard ? { owner: guard.fence.owner, epoch: guard.fence.epoch } : guard;
    const [result, revision] = replyList(
      await runStep(
        "finish_call",
        root,
        {
          ...namesOf(ref),
          ...trees.logKeys(root, lineage),
          ...{ leases: tree.leases, ended: tree.ended },
          ...{ settled: tree.settled, asks: tree.asks, deadlines: tree.deadlines },
          [`open ${sessionId}`]: tree.open(sessionId),
        },
        { session: sessionId, callId, name, lineage: { [sessionId]: lineage }, ...guards },
        { ...bytes, [`withdrawn ${name}`]: encodeWithdrawal(ref, callEnded, now()) },
        decisions,
      ),
    );
    if (text(result) !== "finished") return undefined;
    held.ended(ref);
    return { ...part, revision: BigInt(number(revision)) };
  }

  return {
    openCall,
    openAsks,
    prepareCall,
    noteCall,
    startCall,
    recordEvents,
    finishCall,

    async claimCall(ref: CallRef, owner: string, leaseMs: number, maxAttempts = 1): Promise<CallRecord | undefined> {
      const names = { ...namesOf(ref), leases: keys.tree(ref.root).leases };
      const values = { name: callName(ref), owner, leaseMs, maxAttempts };
      const found = fields(await runStep("claim_call", ref.root, names, values));
      if (found === undefined) return undefined;
      held.add(owner, ref);
      return records.decode(ref.root, found);
    },

    async requestCancel(ref: CallRef, message: string): Promise<void> {
      await runStep("request_cancel", ref.root, namesOf(ref), { session: ref.sessionId, name: callName(ref), message });
    },
  };
}
