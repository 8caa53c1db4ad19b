import { equals } from "@bufbuild/protobuf";
import { type SessionEvent, SessionEventSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolEffects, ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { isTerminal } from "../../src/call/state.ts";
import type { AcknowledgedCall, Answer, History, Watch } from "./history.ts";
import { disorders } from "./orders.ts";

/** Time for which a command may still write after its call's end: from the last check of the lease to the kill. */
export const stopMs = 1_000;
/** Commands write a line each 50 ms. Where a longer time than this lies between two of them, the machine is slow, and so are its kills. */
const lineMs = 250;

/** Lists the violations in a history, each beginning with the name of the invariant. */
export function violations(history: History): string[] {
  return [
    ...history.calls.flatMap((call) => [
      ...runsAtMostOnce(history, call),
      ...endsOnce(history, call),
      ...runsOnlyIfApproved(history, call),
      ...staysAsAcknowledged(history, call),
      ...isOneCall(call),
      ...stopsWithItsEnd(history, call),
      ...sendsOutputOnce(history, call),
    ]),
    ...[...Map.groupBy(history.answers, ({ permissionId }) => permissionId).values()].flatMap((answers) =>
      hasOneWinner(history, answers),
    ),
    ...[...history.logs].flatMap(([sessionId, log]) => hasNoGap(sessionId, log)),
    ...history.watches.flatMap((watch) => sawTheLog(history, watch)),
    ...disorders(history),
  ];
}

/** I1: a body is entered at most once; of a completed call exactly once; of one that ended without effects, never. */
function runsAtMostOnce(history: History, { callId, parts }: AcknowledgedCall): string[] {
  const written = (word: string) =>
    history.ledger.filter((line) => line.callId === callId && line.word === word).length;
  const starts = written("start");
  const { state } = parts.findLast(isTerminal) ?? {};
  if (starts > 1) return [`I1: ${callId} ran ${starts} times`];
  if (state?.case === "completed" && (starts !== 1 || written("end") !== 1))
    return [`I1: ${callId} completed, but it was run ${starts} times and came to its end ${written("end")} times`];
  if (state?.case === "error" && state.value.effects === ToolEffects.NONE && starts > 0)
    return [`I1: ${callId} is said to have had no effects, but it ran`];
  return [];
}

/** I2: a call that was accepted has one terminal state, and nothing of it comes later. */
function endsOnce(history: History, { sessionId, callId, parts }: AcknowledgedCall): string[] {
  if (parts.length === 0) return [];
  const events = eventsOf(history, sessionId, callId);
  const ends = events.filter(isEnd);
  if (ends.length !== 1) return [`I2: ${callId} has ended ${ends.length} times`];
  const last = events.at(-1);
  return last !== undefined && isEnd(last) ? [] : [`I2: ${callId} has a ${last?.event.case} after its end`];
}

/** I3: a call that asks runs only after a person approved it. */
function runsOnlyIfApproved(history: History, { sessionId, callId, asks }: AcknowledgedCall): string[] {
  const start = history.ledger.find((line) => line.callId === callId);
  if (!asks || start === undefined) return [];
  const approved = eventsOf(history, sessionId, callId).find(
    ({ event }) => event.case === "permissionSettled" && event.value.outcome === PermissionOutcome.ONCE,
  );
  if (approved === undefined) return [`I3: ${callId} ran, and nobody approved it`];
  return approved.time <= start.time + 1 ? [] : [`I3: ${callId} ran before it was approved`];
}

/** I4: at most one answer to an ask wins, it is the recorded one, and every loser gets it as the winner. */
function hasOneWinner(history: History, answers: readonly Answer[]): string[] {
  const [{ sessionId, permissionId } = { sessionId: "", permissionId: "" }] = answers;
  const settled = (history.logs.get(sessionId) ?? []).flatMap(({ event }) =>
    event.case === "permissionSettled" && event.value.permissionId === permissionId ? [event.value] : [],
  );
  if (settled.length > 1) return [`I4: ${permissionId} was settled ${settled.length} times`];
  const recorded = settled[0]?.replyId;
  const winners = answers.filter(({ result }) => result === "won").map(({ replyId }) => replyId);
  if (winners.length > 1) return [`I4: ${permissionId} was won by ${winners.join(" and ")}`];
  if (winners.some((winner) => winner !== recorded))
    return [`I6: ${winners[0]} was acknowledged for ${permissionId}, but recorded is ${recorded ?? "nothing"}`];
  return answers.flatMap(({ replyId, result, winner }) =>
    result === "lost" && winner !== recorded ? [`I4: ${replyId} got ${winner} as the winner of ${permissionId}`] : [],
  );
}

/** I5: a log is numbered 1, 2, 3 … */
function hasNoGap(sessionId: string, log: readonly SessionEvent[]): string[] {
  const at = log.findIndex(({ seq }, index) => seq !== BigInt(index + 1));
  return at < 0 ? [] : [`I5: the log of ${sessionId} has ${log[at]?.seq} where ${at + 1} belongs`];
}

/** I5: a watcher sees every event of the log up to the last one that it saw, each once. */
function sawTheLog(history: History, { sessionId, callId, events }: Watch): string[] {
  const whole = callId === undefined ? (history.logs.get(sessionId) ?? []) : eventsOf(history, sessionId, callId);
  const at = events.findIndex((event, index) => {
    const other = whole[index];
    return other === undefined || (event !== other && !equals(SessionEventSchema, event, other));
  });
  return at < 0
    ? []
    : [`I5: a watcher of ${callId ?? sessionId} saw number ${events[at]?.seq} as its ${at + 1}th event`];
}

/** I6: an acknowledged end is the recorded one. */
function staysAsAcknowledged(history: History, { sessionId, callId, parts }: AcknowledgedCall): string[] {
  const recorded = eventsOf(history, sessionId, callId).find(isEnd);
  const end = recorded?.event.case === "part" ? recorded.event.value : undefined;
  return parts
    .filter(isTerminal)
    .filter((part) => end === undefined || !equals(ToolPartSchema, part, end))
    .map(
      (part) => `I6: ${callId} was acknowledged as ${part.state.case}, but recorded is ${end?.state.case ?? "nothing"}`,
    );
}

/** I7: the same id names the same call. */
function isOneCall({ callId, parts }: AcknowledgedCall): string[] {
  const ids = new Set(parts.map(({ id }) => id));
  return ids.size > 1 ? [`I7: ${callId} was acknowledged as ${[...ids].join(" and ")}`] : [];
}

/** I9: nothing of an ended call continues to run. */
function stopsWithItsEnd(history: History, { sessionId, callId }: AcknowledgedCall): string[] {
  const end = eventsOf(history, sessionId, callId).find(isEnd);
  const last = history.ledger.findLast((line) => line.callId === callId);
  if (end === undefined || last === undefined || last.time <= end.time + stopMs) return [];
  const slowness = Math.max(1, maxGapMs(history, end.time - stopMs, last.time) / lineMs);
  if (last.time <= end.time + stopMs * slowness) return [];
  return [`I9: ${callId} wrote "${last.word}" ${Math.round(last.time - end.time)} ms after its end`];
}

/** Returns the maximum time between two lines of a command that was running in this time. */
function maxGapMs({ ledger }: History, from: number, to: number): number {
  const lines = ledger.filter(({ word, time }) => word !== "end" && time >= from && time <= to);
  return Math.max(
    0,
    ...[...Map.groupBy(lines, ({ callId, pid }) => `${callId} ${pid}`).values()].flatMap((each) =>
      each.slice(1).map(({ time }, index) => time - (each[index]?.time ?? time)),
    ),
  );
}

/** I5: output is emitted once, each piece where the previous one ended; that of a completed call is what its result shows. */
function sendsOutputOnce(history: History, { sessionId, callId, parts }: AcknowledgedCall): string[] {
  let offset = 0n;
  let text = "";
  for (const { event } of eventsOf(history, sessionId, callId)) {
    if (event.case !== "output") continue;
    if (event.value.offset !== offset) return [`I5: output of ${callId} at ${event.value.offset}, not at ${offset}`];
    offset += BigInt(event.value.data.length);
    text += Buffer.from(event.value.data).toString();
  }
  const { state } = parts.findLast(isTerminal) ?? {};
  if (state?.case === "completed" && text !== state.value.output)
    return [
      `I5: output of ${callId} is ${JSON.stringify(text)}, and its result shows ${JSON.stringify(state.value.output)}`,
    ];
  return [];
}

/** Events of one call in a log. */
function eventsOf({ logs }: History, sessionId: string, callId: string): SessionEvent[] {
  const log = logs.get(sessionId) ?? [];
  return log.filter(({ event }) => {
    switch (event.case) {
      case "part":
      case "progress":
      case "output":
      case "permissionSettled":
        return event.value.callId === callId;
      case "permissionAsked":
        return event.value.tool?.callId === callId;
      default:
        return false;
    }
  });
}

function isEnd({ event }: SessionEvent): boolean {
  return event.case === "part" && isTerminal(event.value);
}
