import { create, type MessageInitShape } from "@bufbuild/protobuf";
import fc from "fast-check";
import { expect, test } from "vitest";
import type { SessionEventSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { WatchPermissionsResponseSchema } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { createCards, endWords, isOpen } from "../../src/cli/inbox/cards.ts";
import { createKeyboard } from "../../src/cli/inbox/keyboard.ts";
import { needWords } from "../../src/view/need.ts";

type Event = { asked: string; digest?: string; command?: string; agent?: string } | { settled: string; by?: string };

const frameOf = (event: Event, storeId = "") =>
  create(WatchPermissionsResponseSchema, {
    storeId,
    event: {
      event:
        "asked" in event
          ? {
              case: "permissionAsked",
              value: {
                id: event.asked,
                digest: event.digest ?? "",
                sessionId: "ses_1",
                tool: { callId: callOf(event.asked) },
                agent: event.agent ?? "",
                ...(event.command && { view: { tool: "bash", input: [{ path: "/command", text: event.command }] } }),
              },
            }
          : {
              case: "permissionSettled",
              value: { permissionId: event.settled, outcome: PermissionOutcome.ONCE, by: event.by ?? "" },
            },
    },
  });
const first = create(WatchPermissionsResponseSchema, { storeId: "store_1" });
const mark = create(WatchPermissionsResponseSchema, { snapshotEnd: true });
/** Asks `a1` and `a2` are of the call `a`. */
const callOf = (id: string) => id.slice(0, 1);

function inbox() {
  const clock = { now: 10_000 };
  const cards = createCards(() => clock.now);
  const answered: string[] = [];
  const said: string[] = [];
  const seen = { whole: true };
  const keyboard = createKeyboard(cards, {
    answer: (asks, { reply }) => answered.push(...asks.map(({ id }) => `${id} ${reply}`)),
    rejectAll: (scope, message) => answered.push(`${JSON.stringify(scope)} ${message}`),
    edit: () => undefined,
    turnPage: () => undefined,
    showWhole: () => undefined,
    isWhole: () => seen.whole,
    say: (notice) => said.push(notice),
    leave: () => undefined,
  });
  const press = (name: string) => keyboard.press({ name, text: name, ctrl: false });
  return { clock, cards, press, answered, said, seen };
}

test("nothing is approved before its end was on the screen; it can be rejected", () => {
  const { clock, cards, press, answered, said, seen } = inbox();
  cards.apply(frameOf({ asked: "a1" }));
  cards.shown();
  clock.now += 500;
  seen.whole = false;
  press("o");
  expect(answered).toEqual([]);
  expect(said).toEqual(["read it to its end first: space"]);
  press("r");
  press("return");
  expect(answered).toEqual([`a1 ${PermissionReply.REJECT}`]);
});

test("nothing is approved that has been on the screen for less than half a second", () => {
  const { clock, cards, press, answered, said } = inbox();
  cards.apply(frameOf({ asked: "a1" }));
  press("o");
  cards.shown();
  clock.now += 499;
  press("o");
  expect(answered).toEqual([]);
  expect(said).toHaveLength(2);
  clock.now += 1;
  press("o");
  expect(answered).toEqual([`a1 ${PermissionReply.ONCE}`]);
});

test("what is added to a call, or changed, has to be seen again first", () => {
  const { clock, cards, press, answered } = inbox();
  cards.apply(frameOf({ asked: "a1" }));
  cards.shown();
  clock.now += 500;
  cards.apply(frameOf({ asked: "a2" }));
  press("o");
  cards.shown();
  clock.now += 500;
  cards.apply(frameOf({ asked: "a2", digest: "other" }));
  cards.shown();
  press("o");
  expect(answered).toEqual([]);
});

test("what comes up in place of another one cannot be approved by the key that was meant for that", () => {
  const { clock, cards, press, answered } = inbox();
  for (const id of ["a1", "b1"]) cards.apply(frameOf({ asked: id }));
  cards.shown();
  clock.now += 500;
  cards.apply(frameOf({ settled: "a1" }));
  clock.now += 4_000;
  cards.sweep();
  press("o");
  cards.shown();
  press("o");
  expect(answered).toEqual([]);
  expect(cards.selected()?.asks[0].id).toBe("b1");
});

test("a snapshot that is sent again changes nothing that is known, and does not make it inert", () => {
  const { clock, cards, press, answered } = inbox();
  for (const frame of [first, frameOf({ asked: "a1" }), mark]) cards.apply(frame);
  cards.shown();
  clock.now += 500;
  for (const frame of [first, frameOf({ asked: "a1" }), mark]) cards.apply(frame);
  press("o");
  expect(answered).toEqual([`a1 ${PermissionReply.ONCE}`]);
});

test("an answered call says how for a while, then goes", () => {
  const { clock, cards } = inbox();
  cards.apply(frameOf({ asked: "a1" }));
  cards.apply(frameOf({ settled: "a1", by: "alice" }));
  clock.now += 3_999;
  cards.sweep();
  expect(cards.all().map(endWords)).toEqual(["approved once by alice"]);
  clock.now += 1;
  cards.sweep();
  expect(cards.all()).toEqual([]);
});

test("equal calls share a row; one key approves one of them, and a reject ends each", () => {
  const { clock, cards, press, answered } = inbox();
  for (const asked of ["a1", "b1", "c1"]) cards.apply(frameOf({ asked, command: "npm test" }));
  cards.apply(frameOf({ asked: "d1", command: "npm ci" }));
  expect(cards.rows().map((row) => row.length)).toEqual([3, 1]);
  cards.shown();
  clock.now += 500;
  press("o");
  expect(answered.splice(0)).toEqual([`a1 ${PermissionReply.ONCE}`]);
  for (const key of ["r", "tab", "return"]) press(key);
  expect(answered).toEqual(["a1", "b1", "c1"].map((id) => `${id} ${PermissionReply.REJECT}`));
  press("j");
  expect(cards.selected()?.asks[0].id).toBe("d1");
});

test("one reason rejects all of the session or agent; the keys go round", () => {
  const { cards, press, answered } = inbox();
  cards.apply(frameOf({ asked: "a1", command: "npm test", agent: "build" }));
  for (const key of ["r", "tab", "n", "o", "return"]) press(key);
  for (const key of ["r", "tab", "tab", "return"]) press(key);
  for (const key of ["r", "tab", "tab", "tab", "return"]) press(key);
  expect(answered).toEqual(['{"sessionId":"ses_1"} no', '{"agent":"build"} ', `a1 ${PermissionReply.REJECT}`]);
});

test("the filter hides calls until it is cleared, and keys act on what is visible", () => {
  const { cards, press, answered } = inbox();
  for (const [asked, command] of [
    ["a1", "npm test"],
    ["b1", "npm ci"],
  ] as const)
    cards.apply(frameOf({ asked, command }));
  for (const key of ["/", "c", "i"]) press(key);
  expect(cards.rows().flatMap((row) => row.map(({ key }) => key))).toEqual(["ses_1 b"]);
  for (const key of ["return", "r", "return"]) press(key);
  expect(answered).toEqual([`b1 ${PermissionReply.REJECT}`]);
  for (const key of ["/", "x", "escape"]) press(key);
  expect(cards.filter()).toBe("ci");
});

test("a card shows the votes and steps of its request, also those that it missed", () => {
  const { cards } = inbox();
  const words = () => cards.all().flatMap(({ asks }) => asks.map((ask) => needWords(ask)));
  const step = { at: 1, to: ["lead"] };
  const need = { all: [{ approve: 2, from: ["sre"] }], reject: 1 };
  const escalated = { permissionId: "a1", escalations: [{ ...step, taken: 2 }] };
  const frame = (event: NonNullable<MessageInitShape<typeof SessionEventSchema>["event"]>) =>
    create(WatchPermissionsResponseSchema, { event: { event } });
  const asked = { id: "a1", need, escalations: [step] };
  cards.apply(frame({ case: "permissionAsked", value: asked }));
  expect(words()).toEqual(["0 of 2, waiting for sre"]);
  cards.apply(frame({ case: "permissionEscalated", value: escalated }));
  expect(words()).toEqual(["0 of 2, waiting for sre, by now also lead"]);
  const votes = [{ outcome: PermissionOutcome.ONCE, person: { groups: ["lead"] } }];
  for (const one of [first, frame({ case: "permissionAsked", value: { ...asked, ...escalated, votes } }), mark])
    cards.apply(one);
  expect(words()).toEqual(["1 of 2, waiting for sre, by now also lead"]);
});

test("what is open here is what is open there, whatever was cut off in between", () => {
  const ids = ["a1", "a2", "b1", "b2", "c1"];
  const step = fc.oneof(
    fc.record({ asked: fc.constantFrom(...ids) }),
    fc.record({ settled: fc.constantFrom(...ids) }),
    // Requests opened and settled while disconnected, then the new snapshot.
    fc.record({ cut: fc.subarray(ids) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 30 }), (steps) => {
      const { cards } = inbox();
      let open = new Set<string>();
      for (const one of steps) {
        if ("asked" in one) open.add(one.asked);
        if ("settled" in one) open.delete(one.settled);
        if ("cut" in one) open = new Set(one.cut);
        const frames = "cut" in one ? [first, ...one.cut.map((id) => frameOf({ asked: id })), mark] : [frameOf(one)];
        for (const frame of frames) cards.apply(frame);
      }
      const here = cards
        .all()
        .filter(isOpen)
        .flatMap(({ asks }) => asks.map(({ id }) => id));
      expect(here.toSorted()).toEqual([...open].toSorted());
    }),
  );
});
