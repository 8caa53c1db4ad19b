import fc from "fast-check";
import { expect, test } from "vitest";
import * as z from "zod";
import { advancePosition, type FeedPosition, parsePosition, positionAt, positionText } from "../../src/call/feed.ts";
import { openStore } from "../../src/compose/store.ts";
import { defineTool } from "../../src/tool/define-tool.ts";
import { serve } from "./server.ts";

const began = 1_000_000;
const overtakenMs = 30_000;

interface LoggedEvent {
  session: string;
  seq: number;
  time: number;
}

/** Events of some sessions in the order in which a reader gets them: each is late by less than the time that may overtake it. */
function readingOf(sessionCount: number) {
  const step = fc.tuple(fc.nat(sessionCount - 1), fc.nat(20_000), fc.constantFrom(0, 10_000, overtakenMs - 1));
  return fc.array(step, { minLength: 1, maxLength: 80 }).map((steps) => {
    let time = began;
    const seqs = new Map<string, number>();
    const readAt = new Map<string, number>();
    const events = steps.map(([session, pause, late]) => {
      const name = `ses_${session}`;
      const seq = (seqs.get(name) ?? 0) + 1;
      seqs.set(name, seq);
      time += pause + 1;
      // A reader gets the events of a session in order.
      const at = Math.max(time + late, readAt.get(name) ?? 0);
      readAt.set(name, at);
      return { session: name, seq, time, at };
    });
    return events.toSorted((a, b) => a.at - b.at);
  });
}

/** True if a reader that goes on from the position does not get the event. */
function isRead({ floor, read }: FeedPosition, { session, seq, time }: LoggedEvent): boolean {
  const last = read.get(session)?.seq;
  return last === undefined ? time <= floor : seq <= last;
}

/** Returns the position after some events; before each of them the reader leaves and comes back. */
function positionAfter(events: readonly LoggedEvent[]): FeedPosition {
  let position = positionAt(began);
  for (const { session, seq, time } of events) {
    advancePosition(position, session, seq, time);
    const parsed = parsePosition(positionText(position, "sto_1"), "sto_1");
    if (parsed === undefined) throw new Error("the text of a position is no position");
    position = parsed;
  }
  return position;
}

test("a reader that goes on gets every event that it has not read, and none twice", () => {
  fc.assert(
    fc.property(readingOf(20), fc.nat(80), (events, cut) => {
      const position = positionAfter(events.slice(0, cut));
      for (const event of events.slice(cut)) expect(isRead(position, event)).toBe(false);
      for (const event of events.slice(0, cut)) expect(isRead(position, event)).toBe(true);
    }),
  );
});

test("with more sessions than a position names, events are read twice, but none is missed", () => {
  fc.assert(
    fc.property(readingOf(200), fc.nat(80), (events, cut) => {
      const position = positionAfter(events.slice(0, cut));
      for (const event of events.slice(cut)) expect(isRead(position, event)).toBe(false);
    }),
  );
});

test("a position stays short, whatever the number of sessions", () => {
  const position = positionAt(began);
  for (let index = 0; index < 5_000; index += 1)
    advancePosition(position, `ses_${index}`.padEnd(64, "x"), 1, began + 1);
  expect(positionText(position, "sto_1").length).toBeLessThan(3_000);
});

test.each([
  "",
  "sto_1",
  "sto_2~5",
  "sto_1~x",
  "sto_1~5~ses_a",
  "sto_1~5~ses_a.1.2",
  "sto_1~5~nothing.1",
  `sto_1~5${"~ses_a.1".repeat(33)}`,
  "sto_1~9999999999999999",
])("%j is no position in the store", (text) => {
  expect(parsePosition(text, "sto_1")).toBeUndefined();
});

const say = defineTool({
  name: "say",
  description: "Says nothing.",
  input: z.object({}),
  plan: () => ({ title: "say", asks: [] }),
  execute: () => ({ output: "" }),
});

test("a search for what a client missed ends when the client leaves", async () => {
  const [searching, left] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const searched = new Set<string>();
  let isResumed = false;
  const { agent, url } = await serve([say], {
    toml: "[rest]\nenabled = true\n",
    async open(config, log) {
      const store = await openStore(config, log);
      const readLog: typeof store.calls.readLog = async (id, ...from) => {
        if (isResumed) {
          searched.add(id);
          searching.resolve();
          await left.promise;
        }
        return await store.calls.readLog(id, ...from);
      };
      return { ...store, calls: { ...store.calls, readLog } };
    },
  });
  const headers = { authorization: "Bearer approver" };
  const leaving = new AbortController();
  const { body } = await fetch(`${url}/event`, { headers, signal: leaving.signal });
  let text = "";
  for await (const chunk of body ?? []) {
    text += Buffer.from(chunk).toString();
    if (text.includes("id: ")) break;
  }
  const lastEventId = /^id: (.*)$/m.exec(text)?.[1] ?? "";
  for (let count = 0; count < 5; count += 1) await agent.tools.callTool({ tool: "say", callId: "c1", input: {} });
  isResumed = true;
  const resuming = fetch(`${url}/event`, {
    headers: { ...headers, "last-event-id": lastEventId },
    signal: leaving.signal,
  }).catch(() => undefined);
  await searching.promise;
  leaving.abort();
  await resuming;
  // The service has noticed the closed connection when it has answered on others.
  for (let round = 0; round < 3; round += 1) await fetch(`${url}/session`, { headers });
  left.resolve();
  for (let round = 0; round < 20; round += 1) await fetch(`${url}/session`, { headers });
  expect(searched.size).toBe(1);
});
