import type { OpenCallStep, OpenedCall } from "../../call/ports.ts";
import { noSuchSession } from "../../core/request-error.ts";
import { checkEnded } from "../parts.ts";
import { parentEnded, sessionClosed, tooManyCalls } from "../refusals.ts";
import { callStepKeys, type RedisCallContext } from "./call-context.ts";
import { callName } from "./call-records.ts";
import { encodeEvent } from "./events.ts";
import { encodePart } from "./parts.ts";
import { number, replyList, text } from "./reply.ts";
import { encodeSealedJson } from "./sealed.ts";

/** open_call: lists the tree as live, then accepts the call, or reads the existing one with that id. */
export async function runOpenCall(context: RedisCallContext, opened: OpenCallStep): Promise<OpenedCall> {
  const { keys, trees, live, records, held, runStep } = context;
  const { ref, spec, owner, leaseMs, maxOpenCalls, unrecordedCalls = 0, maxRepeats } = opened;
  const { root, sessionId, callId } = ref;
  const tree = keys.tree(root);
  const name = callName(ref);
  const pending = encodePart(sessionId, name, opened.part);
  const start = opened.start && encodePart(sessionId, "start", opened.start);
  if (opened.end) checkEnded(opened.end);
  const end = opened.end && encodePart(sessionId, "end", opened.end);
  const reads = [...(opened.reads ?? [])].flat();
  const progress = opened.progress && encodeEvent(sessionId, { case: "progress", value: opened.progress });
  const bytes = { ...pending.bytes, ...start?.bytes, ...end?.bytes, progress };
  const names = {
    ...{ calls: tree.calls(sessionId), open: tree.open(sessionId), leases: tree.leases },
    ...callStepKeys(context, ref),
    ...(opened.delegated && { callOf: tree.callOf }),
    ...(end && { ended: tree.ended }),
    ...(reads.length > 0 && { reads: tree.reads }),
    ...(spec.parent !== undefined && { parent: tree.call(callName({ sessionId, callId: spec.parent })) }),
  };
  const values = {
    ...{ session: sessionId, callId, name, owner, leaseMs, maxOpenCalls: maxOpenCalls - unrecordedCalls, maxRepeats },
    request: spec.requestDigest,
    spec: encodeSealedJson(spec),
    collectMs: spec.delegated?.collectMs,
    ...(reads.length > 0 && { reads }),
    remote: opened.remote && JSON.stringify(opened.remote),
    ...(opened.queued && { queued: opened.queued, unclaimed: [[root, sessionId, callId]] }),
    ...opened.delegated,
  };

  // Before the start, so that a call is found by every assignment that is given out.
  if (opened.delegated) await trees.pointTo(opened.delegated.assignment, root);
  for (let generation = await live.enter(root); ; ) {
    // From here on a failover that loses work refuses the step.
    opened.checkStore?.();
    const [result, value, last, repeats, begun, waits] = replyList(
      await runStep("open_call", root, names, { ...values, generation }, bytes, opened.decisions),
    );
    switch (text(result)) {
      case "opened": {
        const openedSeq = number(value);
        const started = number(begun);
        const assignment = started === 1 ? opened.delegated?.assignment : undefined;
        const ended = started === 1 && end !== undefined;
        const queued =
          number(waits) === 1 && opened.queued ? { owner: "", queuedUntil: opened.queued.until } : undefined;
        if (assignment !== undefined) await trees.keepPointer(assignment);
        else if (queued) await live.sooner(root, context.now());
        else if (!ended) held.add(owner, ref);
        const { part: written } = started === 1 ? (end ?? start ?? pending) : pending;
        const part = { ...written, revision: BigInt(number(last)) };
        const version = 1 + started + (ended ? 1 : 0);
        const versions = { version, epoch: 1, attempts: started, repeats: number(repeats) };
        const remote = started === 1 && opened.remote ? { remote: opened.remote } : {};
        const holder = assignment !== undefined ? { owner: "", assignment } : { owner: ended ? "" : owner };
        return { record: { ref, part, spec, openedSeq, ...holder, ...versions, ...remote, ...queued }, created: true };
      }
      case "generation":
        generation = await live.reenter(root, number(value));
        continue;
      case "no session":
        throw noSuchSession(sessionId);
      case "closed":
        throw sessionClosed(sessionId);
      case "no parent":
        throw parentEnded(sessionId, spec.parent ?? "");
      case "full":
        throw tooManyCalls(sessionId, maxOpenCalls);
      default: {
        const record = await records.find(ref);
        if (record !== undefined) return { record, created: false };
      }
    }
  }
}
