import { create } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { type SessionEvent, SessionEventSchema, ToolOutputSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionOutcome, PermissionSettledSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionRequestSchema,
  ToolEffects,
  ToolErrorReason,
  type ToolPart,
  ToolPartSchema,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { violations } from "./checker.ts";
import type { History } from "./history.ts";

const [sessionId, callId, permissionId] = ["ses_1", "c1", "per_1"];
const identity = { sessionId, callId, id: "prt_1" };

const pending = create(ToolPartSchema, { ...identity, state: { case: "pending", value: {} } });
const running = create(ToolPartSchema, { ...identity, state: { case: "running", value: {} } });
const completed = create(ToolPartSchema, { ...identity, state: { case: "completed", value: { output: "ab" } } });
const lost = create(ToolPartSchema, {
  ...identity,
  state: { case: "error", value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN } },
});
const harmless = create(ToolPartSchema, {
  ...identity,
  state: { case: "error", value: { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.NONE } },
});

type Happened = SessionEvent["event"];
const part = (value: ToolPart): Happened => ({ case: "part", value });
const asked: Happened = {
  case: "permissionAsked",
  value: create(PermissionRequestSchema, { id: permissionId, sessionId, tool: { callId } }),
};
const settled = (replyId: string, outcome: PermissionOutcome = PermissionOutcome.ONCE): Happened => ({
  case: "permissionSettled",
  value: create(PermissionSettledSchema, { permissionId, sessionId, callId, outcome, replyId }),
});
const output = (offset: number, text: string): Happened => ({
  case: "output",
  value: create(ToolOutputSchema, { callId, offset: BigInt(offset), data: Buffer.from(text) }),
});

/** Builds a log of these events, a second apart. */
function logOf(...events: Happened[]): SessionEvent[] {
  return events.map((event, index) =>
    create(SessionEventSchema, { seq: BigInt(index + 1), time: (index + 1) * 1_000, sessionId, event }),
  );
}

const story = [pending, running] as const;
const goodLog = () =>
  logOf(part(story[0]), asked, settled("r1"), part(story[1]), output(0, "a"), output(1, "b"), part(completed));
const line = (word: "start" | "tick" | "end", time: number) => ({ word, callId, pid: 1, time });

const read = (at: number, last: number) => ({ sessionId, from: at, to: at, last, isWhole: false });

/** Lines of another command, in this distance. */
const ticksOfAnother = (from: number, to: number, everyMs: number) =>
  Array.from({ length: (to - from) / everyMs }, (_, i) => ({ ...line("tick", from + i * everyMs), callId: "c2" }));

/** Builds a history without violations, except forged entries. */
function history(forged: Partial<History> & { log?: SessionEvent[]; parts?: ToolPart[] } = {}): History {
  const { log = goodLog(), parts = [pending, running, completed], ...rest } = forged;
  return {
    calls: [{ sessionId, callId, asks: true, parts, ended: { from: 900, to: 7_100 } }],
    answers: [
      { sessionId, permissionId, replyId: "r1", result: "won", from: 2_100, to: 3_200 },
      { sessionId, permissionId, replyId: "r2", result: "lost", winner: "r1", from: 2_200, to: 3_100 },
    ],
    reads: [read(2_050, 2), { ...read(7_200, 7), from: 7_150, isWhole: true }],
    watches: [{ sessionId, events: goodLog().slice(0, 5) }],
    logs: new Map([[sessionId, log]]),
    ledger: [line("start", 4_100), line("end", 6_900)],
    ...rest,
  };
}

const renumbered = (log: SessionEvent[]) => log.map((event, index) => ({ ...event, seq: BigInt(index + 1) }));
const without = (log: SessionEvent[], at: number) => renumbered(log.filter((_, index) => index !== at));

test("a good history has no violation", () => {
  expect(violations(history())).toEqual([]);
});

test("an answer without a response may have won, or not", () => {
  const unknown = { result: "unknown" as const, to: Number.POSITIVE_INFINITY };
  const answers = history().answers.map((answer) => ({ ...answer, ...unknown }));
  expect(violations(history({ answers }))).toEqual([]);
  expect(violations(history({ answers: answers.slice(0, 1) }))).toEqual([]);
});

test("a call without an acknowledged end counts as recorded", () => {
  expect(violations(history({ parts: [pending], watches: [] }))).toEqual([]);
});

test("a command may go on for longer after its end where those of that time are slow", () => {
  const slow = [line("start", 4_100), line("end", 6_900), line("tick", 9_000), ...ticksOfAnother(6_000, 9_000, 600)];
  expect(violations(history({ ledger: slow }))).toEqual([]);
});

describe("what is forged is found:", () => {
  const answers = history().answers;
  const noWatch = { watches: [] };
  const cases: Record<string, [expected: string, forged: Parameters<typeof history>[0]]> = {
    "a second run": [
      "I1: c1 ran 2 times",
      { ledger: [line("start", 4_100), line("start", 4_200), line("end", 5_000)] },
    ],
    "a completed call that never ran": ["I1: c1 completed, but", { ledger: [] }],
    "a completed call whose command was killed": ["I1: c1 completed, but", { ledger: [line("start", 4_100)] }],
    "a call without effects that ran": [
      "I1: c1 is said to have had no effects",
      { ...noWatch, parts: [pending, harmless], log: [...goodLog().slice(0, 6), ...logOf(part(harmless))] },
    ],
    "no end": ["I2: c1 has ended 0 times", { log: goodLog().slice(0, 6), parts: [pending] }],
    "two ends": ["I2: c1 has ended 2 times", { log: renumbered([...goodLog(), ...logOf(part(completed))]) }],
    "output after the end": [
      "I2: c1 has a output after its end",
      { log: renumbered([...goodLog(), ...logOf(output(2, "c"))]) },
    ],
    "a run that nobody approved": [
      "I3: c1 ran, and nobody approved it",
      { ...noWatch, answers: [], log: without(without(goodLog(), 2), 1) },
    ],
    "a run that was rejected": [
      "I3: c1 ran, and nobody approved it",
      {
        ...noWatch,
        log: goodLog().map((event, index) =>
          index === 2 ? { ...event, event: settled("r1", PermissionOutcome.REJECT) } : event,
        ),
      },
    ],
    "a run before the approval": ["I3: c1 ran before", { ledger: [line("start", 2_000), line("end", 2_100)] }],
    "two winners": [
      "I4: per_1 was won by r1 and r2",
      { answers: answers.map((answer) => ({ ...answer, result: "won" as const })) },
    ],
    "an ask settled twice": [
      "I4: per_1 was settled 2 times",
      { ...noWatch, log: renumbered([...goodLog().slice(0, 3), ...goodLog().slice(2)]) },
    ],
    "a loser with another winner in its answer": [
      "I4: r2 got r3 as the winner of per_1",
      { answers: answers.map((answer) => ({ ...answer, ...(answer.winner && { winner: "r3" }) })) },
    ],
    "an acknowledged answer that is not recorded": [
      "I6: r1 was acknowledged for per_1, but recorded is r9",
      { ...noWatch, log: goodLog().map((event, index) => (index === 2 ? { ...event, event: settled("r9") } : event)) },
    ],
    "a gap in the log": [
      "I5: the log of ses_1 has 7 where 6 belongs",
      { log: goodLog().filter(({ seq }) => seq !== 6n) },
    ],
    "a watcher that missed an event": [
      "I5: a watcher of ses_1 saw number 3 as its 2th event",
      { watches: [{ sessionId, events: goodLog().filter(({ seq }) => seq !== 2n) }] },
    ],
    "a watcher that saw an event twice": [
      "I5: a watcher of ses_1 saw number 1 as its 2th event",
      { watches: [{ sessionId, events: [...goodLog().slice(0, 1), ...goodLog()] }] },
    ],
    "a watcher that saw other bytes": [
      "I5: a watcher of ses_1",
      { watches: [{ sessionId, events: logOf(part(pending), asked, settled("r2")) }] },
    ],
    "a watcher of one call that missed an event": [
      "I5: a watcher of c1",
      { watches: [{ sessionId, callId, events: goodLog().slice(1) }] },
    ],
    "output whose bytes are lost": [
      'I5: output of c1 is "a\\u0000", and its result shows "ab"',
      { ...noWatch, log: renumbered([...goodLog().slice(0, 5), ...logOf(output(1, "\0")), ...goodLog().slice(6)]) },
    ],
    "output that was recorded twice": [
      "I5: output of c1 at 0, not at 1",
      {
        ...noWatch,
        log: renumbered([...goodLog().slice(0, 5), ...logOf(output(0, "a")), ...goodLog().slice(6)]),
      },
    ],
    "an acknowledged end that is another one now": [
      "I6: c1 was acknowledged as completed, but recorded is error",
      { ...noWatch, log: renumbered([...goodLog().slice(0, 6), ...logOf(part(lost))]) },
    ],
    "one id that became two calls": [
      "I7: c1 was acknowledged as prt_1 and prt_2",
      { parts: [pending, { ...running, id: "prt_2" }, completed] },
    ],
    "a loser that had its answer before the winner answered": [
      "I11: no order of the operations on per_1 explains",
      { answers: answers.map((answer) => (answer.result === "won" ? { ...answer, from: 3_150 } : answer)) },
    ],
    "an answer that found the ask closed before another one won": [
      "I11: no order of the operations on per_1 explains",
      { answers: answers.map((answer) => (answer.result === "lost" ? { ...answer, result: "closed" } : answer)) },
    ],
    "a run after the acknowledged end": [
      "I12: no order of the operations on c1 explains",
      { ledger: [line("start", 7_200), line("end", 7_300)] },
    ],
    "a run in two processes": [
      "I12: no order of the operations on c1 explains",
      { ledger: [line("start", 4_100), line("start", 4_200), line("end", 5_000)] },
    ],
    "a log that was shorter for a later reader": [
      "I13: the log of ses_1 had 7 events for a reader, after another one had seen 8",
      { reads: [read(7_140, 8), { ...read(7_200, 7), from: 7_150, isWhole: true }] },
    ],
    "a command that goes on after its end": [
      'I9: c1 wrote "end" 2000 ms after its end',
      { ledger: [line("start", 4_100), line("end", 9_000)] },
    ],
    "a command that goes on after its end while others run as fast as always": [
      'I9: c1 wrote "end" 2000 ms after its end',
      { ledger: [line("start", 4_100), ...ticksOfAnother(6_000, 9_000, 60), line("end", 9_000)] },
    ],
  };

  test.each(Object.entries(cases))("%s", (_name, [expected, forged]) => {
    const found = violations(history(forged));
    expect(found.filter((violation) => violation.startsWith(expected))).not.toEqual([]);
  });
});
