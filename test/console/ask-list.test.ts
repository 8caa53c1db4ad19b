import { create, type MessageInitShape } from "@bufbuild/protobuf";
import fc from "fast-check";
import { expect, test } from "vitest";
import { PermissionOutcome, PermissionSettledSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type WatchPermissionsResponse,
  WatchPermissionsResponseSchema,
} from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionRequestSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type AskList, createAskList, groupByCall } from "../../src/console/inbox/ask-list.ts";
import { needWords } from "../../src/view/need.ts";

const request = (id: string, callId: string) =>
  create(PermissionRequestSchema, { id, sessionId: "ses_1", tool: { callId, messageId: "msg_1" } });
const asked = (id: string, callId = id) =>
  create(WatchPermissionsResponseSchema, { event: { event: { case: "permissionAsked", value: request(id, callId) } } });
const settled = (id: string) =>
  create(WatchPermissionsResponseSchema, {
    event: { event: { case: "permissionSettled", value: create(PermissionSettledSchema, { permissionId: id }) } },
  });
const openIn = (list: AskList) => list.all().flatMap(({ request, settled }) => (settled ? [] : request.id));
const mark = create(WatchPermissionsResponseSchema, { snapshotEnd: true });

test("an ask that is missing from a new snapshot was settled unseen; the others keep their order", () => {
  const list = createAskList();
  for (const frame of [asked("a"), asked("b"), asked("c"), mark]) list.take(frame);
  list.restart();
  for (const frame of [asked("a"), asked("c"), asked("d"), mark]) list.take(frame);
  expect(list.all().map(({ request, settled }) => [request.id, settled])).toEqual([
    ["a", undefined],
    ["b", "unseen"],
    ["c", undefined],
    ["d", undefined],
  ]);
});

test("a card shows the votes and steps of its request, also those that it missed", () => {
  const list = createAskList();
  const words = () => list.all().map(({ request }) => needWords(request));
  const step = { at: 1, to: ["lead"] };
  const need = { all: [{ approve: 2, from: ["sre"] }], reject: 1 };
  const frame = (fields: Omit<MessageInitShape<typeof PermissionRequestSchema>, "$typeName" | "$unknown">) => {
    const value = create(PermissionRequestSchema, { id: "a", need, escalations: [step], ...fields });
    return create(WatchPermissionsResponseSchema, { event: { event: { case: "permissionAsked", value } } });
  };
  const escalated = { permissionId: "a", escalations: [{ ...step, taken: 2 }] };
  list.take(frame({}));
  list.take(mark);
  expect(words()).toEqual(["0 of 2, waiting for sre"]);
  list.take(
    create(WatchPermissionsResponseSchema, { event: { event: { case: "permissionEscalated", value: escalated } } }),
  );
  expect(words()).toEqual(["0 of 2, waiting for sre, by now also lead"]);
  list.restart();
  list.take(frame({ ...escalated, votes: [{ outcome: PermissionOutcome.ONCE, person: { groups: ["lead"] } }] }));
  expect(words()).toEqual(["1 of 2, waiting for sre, by now also lead"]);
});

test("while a new snapshot arrives, no ask counts as settled", () => {
  const list = createAskList();
  for (const frame of [asked("a"), asked("b"), mark]) list.take(frame);
  list.restart();
  list.take(asked("b"));
  expect(openIn(list)).toEqual(["a", "b"]);
});

test("after any number of breaks the open asks are those of the service", () => {
  const step = fc.oneof(
    fc.record({ do: fc.constant("ask" as const), id: fc.constantFrom(..."abcdef") }),
    fc.record({ do: fc.constant("settle" as const), id: fc.constantFrom(..."abcdef") }),
    fc.record({ do: fc.constant("break" as const), lost: fc.nat(3) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
      const list = createAskList();
      list.take(mark);
      const service = new Set<string>();
      const known = new Set<string>();
      let deaf = 0;
      const emit = (frame: WatchPermissionsResponse) => {
        if (deaf === 0) list.take(frame);
        else deaf -= 1;
        if (deaf !== 0) return;
        list.restart();
        for (const id of service) list.take(asked(id));
        list.take(mark);
      };
      for (const now of steps) {
        if (now.do === "break") deaf = now.lost + 1;
        else if (now.do === "ask" && !known.has(now.id)) {
          known.add(now.id);
          service.add(now.id);
          emit(asked(now.id));
        } else if (now.do === "settle" && service.delete(now.id)) emit(settled(now.id));
      }
      list.restart();
      for (const id of service) list.take(asked(id));
      list.take(mark);
      expect(new Set(openIn(list))).toEqual(service);
    }),
  );
});

test("the asks of a call form a group, which is open while one of them is, and then has no ended ones", () => {
  const list = createAskList();
  for (const [id, callId] of [
    ["a", "c1"],
    ["b", "c2"],
    ["c", "c1"],
  ] as const)
    list.take(asked(id, callId));
  for (const frame of [mark, settled("a")]) list.take(frame);
  const groups = () =>
    groupByCall(list.all()).map(({ id, asks, open }) => [id, asks.map(({ request }) => request.id), open.length]);
  expect(groups()).toEqual([
    ["c", ["c"], 1],
    ["b", ["b"], 1],
  ]);
  list.take(settled("c"));
  expect(groups()[0]).toEqual(["a", ["a", "c"], 0]);
});
