import { type Grant, GrantSchema, GrantScope, PermissionOutcome } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { ToolPart } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { Settlement, SettleResult } from "../../approval/ports.ts";
import type { Logger } from "../../core/logger.ts";
import { checkEnded, votedEvent } from "../parts.ts";
import { callEnded, encodeWithdrawal } from "./asks.ts";
import { callName } from "./call-records.ts";
import { decodeSettled, encodeAsked, encodeEvent, encodePart, encodeSealed } from "./events.ts";
import type { GrantSlots } from "./grant-slots.ts";
import type { StepBytes, StepKeys } from "./link.ts";
import { bytes, replyList, text, texts } from "./reply.ts";
import { parentKeys, type RedisCallContext, settleKeys } from "./steps.ts";

/** State that settlements need. */
interface SettleContext extends RedisCallContext {
  readonly log: Logger;
  readonly slots: GrantSlots;
}

/**
 * settle_ask: decides the race for an ask and writes every change of the winner. An answer after the deadline, and an expiry
 * before it, lose without a winner: the caller then expires the ask, or waits.
 */
export async function runSettlement(context: SettleContext, settlement: Settlement): Promise<SettleResult> {
  const { slots, held, now, runStep } = context;
  const { root, askId, settled, calls, grants: saved, expired, asksVersion, voted } = settlement;
  const lineage = await lineagesOf(context, settlement);
  const values = {
    ...{ ask: askId, expired, lineage, asksVersion },
    settled: settled.map(({ permissionId, sessionId }) => ({ id: permissionId, session: sessionId })),
    ...(voted && { voted: voted.map(({ id, sessionId }) => ({ id, session: sessionId })) }),
    calls: calls.map(({ ref, version, part, start }) => ({
      ...{ name: callName(ref), session: ref.sessionId, callId: ref.callId, version },
      ...{ ended: hasEnded(part), edited: part !== undefined && !hasEnded(part) },
      ...(start && { owner: start.owner, leaseMs: start.leaseMs }),
    })),
    grants: saved.map((grant) => ({ id: grant.id, session: grant.sessionId, wide: isWide(grant) })),
  };
  const given = encode(settlement, now());
  for (const grant of saved) await slots.announce(root, grant);

  const names = settlementKeys(context, settlement, lineage);
  const step = refuses(settlement) ? "refuse_ask" : "settle_ask";
  const hold = () => {
    for (const { ref, start } of calls) if (start) held.add(start.owner, ref);
  };
  const [result, ...rest] = replyList(
    await runStep(step, root, names, values, given, settlement.decisions).catch((cause: unknown) => {
      // Its answer may be lost: the renewal of leases finds out which calls it started.
      hold();
      throw cause;
    }),
  );
  if (text(result) === "won") {
    hold();
    return await afterSettlement(context, settlement, new Set(texts(rest)));
  }
  if (text(result) !== "lost") return { result: "retry" };
  const found = bytes(rest[0]);
  return found?.byteLength ? { result: "lost", settled: decodeSettled(found) } : { result: "lost" };
}

async function afterSettlement(
  context: SettleContext,
  { root, calls, grants }: Settlement,
  left: ReadonlySet<string>,
): Promise<SettleResult> {
  const { held, live, now } = context;
  for (const { ref, part } of calls) if (hasEnded(part)) held.ended(ref);
  const unclaimed = calls.map(({ ref }) => ref).filter((ref) => left.has(callName(ref)));
  if (unclaimed.length > 0) await live.sooner(root, now());
  if (grants.some(isWide)) await drainNow(context, root);
  return { result: "won", ...(unclaimed.length > 0 && { unclaimed }) };
}

/** Returns every session that the settlement emits events in, each with its ancestors. */
async function lineagesOf(
  { trees }: SettleContext,
  { root, settled, calls, grants: saved }: Settlement,
): Promise<Record<string, string[]>> {
  const sessions = new Set([...settled, ...calls.map(({ ref }) => ref)].map(({ sessionId }) => sessionId));
  if (saved.length > 0) sessions.add(root);
  const entries = [...sessions].map(async (id) => [id, await trees.lineage(root, id)] as const);
  return Object.fromEntries(await Promise.all(entries));
}

function settlementKeys(
  { keys, trees }: SettleContext,
  { root, calls, voted }: Settlement,
  lineages: Record<string, string[]>,
): StepKeys {
  const { leases, ended, grants, outbox, asked, ...tree } = keys.tree(root);
  const callKeys = calls.flatMap(({ ref, part }) => [
    [`call ${callName(ref)}`, tree.call(callName(ref))],
    [`open ${ref.sessionId}`, tree.open(ref.sessionId)],
    ...(part && hasEnded(part) ? Object.entries(parentKeys({ keys }, ref, part)) : []),
  ]);
  return {
    ...{ leases, ended, grants, outbox },
    ...(voted && { asked }),
    ...settleKeys({ keys }, root),
    ...Object.fromEntries(callKeys),
    ...trees.logKeys(root, new Set(Object.values(lineages).flat())),
  };
}

/** Moves wider grants to their slots. The settlement stands even if this fails: the recovery loop repeats it. */
async function drainNow({ slots, log }: SettleContext, root: string): Promise<void> {
  await slots.drainOutbox(root).catch((error: unknown) => {
    log.warn("a grant could not be moved to its workspace's slot yet; it will be retried", { error, sessionId: root });
  });
}

/** Returns true for a settlement that only ends: it saves no grant and no vote, and changes no input. */
function refuses({ settled, voted }: Settlement): boolean {
  return voted === undefined && settled.every(({ outcome }) => refusals.has(outcome));
}

const { REJECT, EXPIRED, DENIED, WITHDRAWN } = PermissionOutcome;
const refusals: ReadonlySet<PermissionOutcome> = new Set([REJECT, EXPIRED, DENIED, WITHDRAWN]);

const isWide = ({ scope }: Grant) => scope !== GrantScope.SESSION;
const hasEnded = (part: ToolPart | undefined) => part !== undefined && part.state.case !== "pending";

function encode({ settled, calls, grants, voted = [] }: Settlement, now: number): StepBytes {
  const given: StepBytes = Object.assign({}, ...grants.map(encodeGrant));
  for (const value of settled) {
    given[`settled ${value.permissionId}`] = encodeEvent(value.sessionId, { case: "permissionSettled", value });
  }
  for (const request of voted) {
    given[`asked ${request.id}`] = encodeAsked(request);
    given[`voted ${request.id}`] = encodeEvent(request.sessionId, {
      case: "permissionVoted",
      value: votedEvent(request),
    });
  }
  for (const { ref, part, start } of calls) {
    if (start) Object.assign(given, encodePart(ref.sessionId, callName(ref), start.part).bytes);
    if (part === undefined) continue;
    const name = callName(ref);
    Object.assign(given, encodePart(ref.sessionId, name, part).bytes);
    if (!hasEnded(part)) continue;
    checkEnded(part);
    given[`withdrawn ${name}`] = encodeWithdrawal(ref, callEnded, now);
  }
  return given;
}

function encodeGrant(grant: Grant): StepBytes {
  return {
    [`grant ${grant.id}`]: encodeSealed(GrantSchema, grant),
    [`granted ${grant.id}`]: encodeEvent(grant.sessionId, { case: "granted", value: grant }),
  };
}
