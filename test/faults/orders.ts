import { ToolEffects } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { isTerminal } from "../../src/call/state.ts";
import type { AcknowledgedCall, Answer, History, LogRead } from "./history.ts";
import { type Operation, unorderable } from "./linearizable.ts";

/** Lists the objects of a history whose operations fit in no order: asks (I11), calls (I12) and logs (I13). */
export function disorders(history: History): string[] {
  const asks = Map.groupBy(history.answers, ({ permissionId }) => permissionId);
  const logs = Map.groupBy(history.reads, ({ sessionId }) => sessionId);
  return [
    ...[...asks].flatMap(([id, answers]) => violation("I11", id, unorderable(settlements(history, answers), "open"))),
    ...history.calls.flatMap((call) => violation("I12", call.callId, unorderable(runsOf(history, call), "new"))),
    ...[...logs].flatMap(([id, reads]) => shortReads(reads).map((read) => `I13: the log of ${id} ${read}`)),
  ];
}

const violation = (law: string, object: string, left: readonly string[] | undefined): string[] =>
  left === undefined ? [] : [`${law}: no order of the operations on ${object} explains ${left.join(", ")}`];

const ever = { from: Number.NEGATIVE_INFINITY, to: Number.POSITIVE_INFINITY };

/** An ask is a register that is written once: open, closed without an answer, or the reply id of the winner. */
function settlements({ logs }: History, answers: readonly Answer[]): Operation<string>[] {
  const [{ sessionId, permissionId } = { sessionId: "", permissionId: "" }] = answers;
  const write = (reply: string) => (state: string) => (state === "open" || state === reply ? reply : undefined);
  const read = (reply: string) => (state: string) => (state === reply ? state : undefined);
  const recorded = (logs.get(sessionId) ?? []).flatMap(({ event }) =>
    event.case === "permissionSettled" && event.value.permissionId === permissionId ? [event.value] : [],
  );
  const ended = Math.max(
    ...answers.map(({ from }) => from),
    ...answers.flatMap(({ to }) => (to < ever.to ? [to] : [])),
  );
  return [
    { ...ever, name: "its withdrawal", apply: write("closed") },
    ...answers.map(({ replyId, result, winner = "", from, to }) => ({
      ...{ name: `${replyId} ${result} ${winner}`.trim(), from, to },
      apply: result === "closed" ? read("closed") : result === "lost" ? read(winner) : write(replyId),
    })),
    ...recorded.map(({ replyId, outcome }) => ({
      ...{ name: `the log with ${replyId || `outcome ${outcome}`}`, from: ended, to: ended },
      apply: read(replyId || "closed"),
    })),
  ];
}

/** A call is a mutex that is taken once: its body is entered only if it is new, and its acknowledged end lets nothing enter it. */
function runsOf({ ledger }: History, { callId, parts, ended }: AcknowledgedCall): Operation<string>[] {
  const starts = ledger.filter((line) => line.callId === callId && line.word === "start");
  const end = parts.find(isTerminal);
  const enter = (state: string) => (state === "new" ? "entered" : undefined);
  const leave = (state: string) => {
    if (end?.state.case === "completed") return state === "entered" ? "ended" : undefined;
    const hadNone = end?.state.case === "error" && end.state.value.effects === ToolEffects.NONE;
    return state === "ended" || (hadNone && state !== "new") ? undefined : "ended";
  };
  return [
    // Clients measure whole milliseconds.
    ...starts.map(({ time, pid }) => {
      const at = Math.floor(time);
      return { name: `its run by process ${pid}`, from: at, to: at, apply: enter };
    }),
    ...(ended ? [{ name: `its end as ${end?.state.case}`, ...ended, apply: leave }] : []),
  ];
}

/**
 * A log is a list that only grows: what a reader saw of it is there for every reader that begins later. For such a list that is all
 * that an order needs, so none is searched.
 */
function shortReads(reads: readonly LogRead[]): string[] {
  const seen = reads.toSorted((one, other) => one.to - other.to);
  const wholes = reads.filter(({ isWhole }) => isWhole).toSorted((one, other) => one.from - other.from);
  let [index, longest] = [0, 0];
  return wholes.flatMap(({ from, last }) => {
    for (; (seen[index]?.to ?? from) < from; index += 1) longest = Math.max(longest, seen[index]?.last ?? 0);
    return last < longest ? [`had ${last} events for a reader, after another one had seen ${longest}`] : [];
  });
}
