import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ToolProgressSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { listOpenRequests } from "../../../src/approval/settlements.ts";
import {
  addSession,
  addTree,
  answer,
  ask,
  askMs,
  ballot,
  callRef,
  escalationOf,
  fenceOf,
  kinds,
  leaseMs,
  logOf,
  type OpenedStore,
  type OpenStore,
  openAskedCall,
  openAsks,
  openCall,
  openEscalating,
  openWaitingCall,
  owner,
  recordOf,
  stepMs,
  voteOf,
} from "../fixture.ts";

const ref = callRef();
const deep = callRef("call_deep", "ses_grandchild");

/** Contract of `AskOpener`, and of the reads of `AskStore`. */
export function asksContract(open: OpenStore): void {
  test("returns an ask with its call, which names the ask as open", async () => {
    const store = await open();
    await addSession(store);
    await openAskedCall(store, ref, ["per_1"]);
    const record = await recordOf(store, ref);
    expect(record).toMatchObject({ version: 2, part: { permissionIds: ["per_1"] } });
    expect(await store.permissions.getAsk("ses_root", "per_1")).toEqual({
      request: ask(ref, "per_1", store),
      principal: "alice",
      person: "alice",
      definitionId: "definition",
      call: ref,
      part: record.part,
      version: 2,
    });
    expect(kinds(await logOf(store))).toEqual(["call_1 pending", "per_1 asked"]);
  });

  test("finds an ask only in its session", async () => {
    const store = await open();
    await addTree(store);
    await openAskedCall(store, deep, ["per_1"]);
    expect(await store.permissions.getAsk("ses_root", "per_1")).toBeUndefined();
    expect(await store.permissions.getAsk("ses_grandchild", "per_none")).toBeUndefined();
    expect((await store.permissions.getAsk("ses_grandchild", "per_1"))?.call).toEqual(deep);
    expect((await store.permissions.findAsk("per_1"))?.call).toEqual(deep);
    expect(await store.permissions.findAsk("per_none")).toBeUndefined();
    expect(await store.permissions.findAsk("ses_grandchild")).toBeUndefined();
  });

  test("a call that is bound to another definition asks nothing, and is an orphan after a reopening, too", async () => {
    const store = await open();
    await addSession(store);
    await openWaitingCall(store, ref, ["per_1", "per_2"]);
    const { version, spec } = await recordOf(store, ref);
    expect(await store.calls.orphans()).toEqual([]);
    const rebound = { ...spec, definitionId: "changed", rebound: { why: "it changed", time: 1 } };
    expect(await store.calls.rebindCall({ ref, version, spec: rebound, message: "gone" })).toBe(true);
    expect(kinds(await logOf(store)).slice(-2)).toEqual(["per_1 WITHDRAWN", "per_2 WITHDRAWN"]);
    expect((await store.permissions.getAsk("ses_root", "per_1"))?.settled?.message).toBe("gone");
    const again = await store.reopen();
    expect(await recordOf(again, ref)).toMatchObject({ owner: "", version: version + 1, spec: rebound });
    expect((await recordOf(again, ref)).part.permissionIds).toEqual([]);
    expect((await again.calls.orphans()).map((orphan) => orphan.ref)).toEqual([ref]);
    expect(await again.permissions.openAsks({ limit: 10 })).toEqual([]);
  });

  test("withdraws the named asks and opens others in one step", async () => {
    const store = await open();
    await addSession(store);
    await openAskedCall(store, ref, ["per_1", "per_2"]);
    await openAsks(store, ref, ["per_3"], { withdraw: ["per_1", "per_unknown"] });
    expect((await recordOf(store, ref)).part.permissionIds).toEqual(["per_2", "per_3"]);
    expect(kinds(await logOf(store)).slice(3)).toEqual(["per_1 WITHDRAWN", "per_3 asked"]);
    const withdrawn = await store.permissions.getAsk("ses_root", "per_1");
    expect(withdrawn?.settled).toMatchObject({ callId: "call_1", by: "", message: "changed", time: store.calls.now() });
  });

  test("does not count asks that the same step withdraws", async () => {
    const store = await open();
    await addTree(store);
    await openAskedCall(store, ref, ["per_1", "per_2"]);
    expect(await openAsks(store, ref, ["per_4"], { withdraw: ["per_1"], maxOpenAsks: 2 })).toBe(true);
  });

  test("emits asks and settlements in the log of every ancestor, under its sequence numbers", async () => {
    const store = await open();
    await addTree(store);
    await openCall(store, ref);
    await openAskedCall(store, deep, ["per_1"]);
    await store.permissions.settle(await answer(store, deep, "per_1"));
    expect(kinds(await logOf(store, "ses_grandchild"))).toEqual(["call_deep pending", "per_1 asked", "per_1 ONCE"]);
    expect(kinds(await logOf(store, "ses_child"))).toEqual(["per_1 asked", "per_1 ONCE"]);
    const rootLog = await logOf(store, "ses_root");
    expect(kinds(rootLog)).toEqual(["call_1 pending", "per_1 asked", "per_1 ONCE"]);
    expect(rootLog[1]).toMatchObject({
      seq: 2n,
      sessionId: "ses_root",
      event: { value: { sessionId: "ses_grandchild" } },
    });
  });

  test("lists open asks oldest first, of one tree or of all, in pages", async () => {
    const store = await open();
    await addTree(store);
    await addSession(store, "ses_other");
    await openAskedCall(store, ref, ["per_b"]);
    await openAskedCall(store, callRef("call_1", "ses_other", "ses_other"), ["per_x"]);
    await openAskedCall(store, deep, ["per_c", "per_a"]);
    await store.permissions.settle(await answer(store, deep, "per_c"));
    const list = async (filter: { root?: string; after?: string; limit: number }) => {
      const requests = (await store.permissions.openAsks(filter)).map(({ request }) => request);
      expect(await store.permissions.openRequests(filter)).toEqual(requests);
      return requests.map(({ id }) => id);
    };
    expect(await list({ limit: 10 })).toEqual(["per_b", "per_x", "per_a"]);
    expect(await list({ root: "ses_root", limit: 10 })).toEqual(["per_b", "per_a"]);
    expect(await list({ limit: 1 })).toEqual(["per_b"]);
    expect(await list({ after: "per_b", limit: 1 })).toEqual(["per_x"]);
    expect(await list({ root: "ses_root", after: "per_b", limit: 5 })).toEqual(["per_a"]);
  });

  test("pages hold the asks of all trees in their order, however these are spread, and go on after one that was settled", async () => {
    const store = await open();
    const trees = ["ses_a", "ses_b", "ses_c"];
    for (const id of trees) await addSession(store, id);
    const spread = [9, 1, 0, 4, 1, 1, 6];
    const ids: string[] = [];
    for (const [turn, count] of spread.entries()) {
      const sessionId = trees[turn % trees.length] ?? "";
      const opened = Array.from({ length: count }, (_, i) => `per_${String(ids.length + i).padStart(2, "0")}`);
      await openAskedCall(store, callRef(`call_${turn}`, sessionId, sessionId), opened);
      ids.push(...opened);
    }
    const pages = async (limit: number) => {
      const found: string[] = [];
      for (;;) {
        const after = found.at(-1);
        const page = await store.permissions.openRequests({ ...(after !== undefined && { after }), limit });
        found.push(...page.map(({ id }) => id));
        if (page.length < limit) return found;
      }
    };
    for (const limit of [1, 4, 7, 100]) expect(await pages(limit), `pages of ${limit}`).toEqual(ids);
    await store.permissions.settle(await answer(store, callRef("call_3", "ses_a", "ses_a"), "per_10"));
    const rest = await store.permissions.openAsks({ after: "per_10", limit: 5 });
    expect(rest.map(({ request }) => request.id)).toEqual(ids.slice(11, 16));
  });

  test("a request that is listed again is decoded again only once it has changed", async () => {
    const store = await open();
    await addTree(store);
    await openAskedCall(store, deep, ["per_1", "per_2"]);
    const list = () => store.permissions.openRequests({ limit: 5 });
    const [first, second] = await list();
    expect((await list()).map((request) => [first, second].indexOf(request))).toEqual([0, 1]);
    await store.permissions.settle(await ballot(store, deep, "per_1", ["ann"]));
    const [voted, same] = await list();
    expect(voted).toEqual({ ...first, votes: [voteOf("ann")] });
    expect(same).toBe(second);
  });

  test("a page is made from as many asks as it holds, and from more only for a viewer who does not see all", async () => {
    const store = await open();
    await addTree(store);
    const ids = Array.from({ length: 20 }, (_, i) => `per_${String(i).padStart(2, "0")}`);
    await openAskedCall(store, ref, ids);
    const read: number[] = [];
    const { permissions } = store;
    const counted = {
      ...permissions,
      async openRequests(filter: Parameters<typeof permissions.openRequests>[0]) {
        const page = await permissions.openRequests(filter);
        read.push(page.length);
        return page;
      },
    };
    const page = async (after: string | undefined, sees: (id: string) => boolean) => {
      read.length = 0;
      const filter = { limit: 5, sees: ({ id }: PermissionRequest) => Promise.resolve(sees(id)) };
      const { requests, next } = await listOpenRequests(counted, { ...filter, ...(after !== undefined && { after }) });
      return { ids: requests.map(({ id }) => id), next };
    };
    expect(await page(undefined, () => true)).toEqual({ ids: ids.slice(0, 5), next: "per_04" });
    expect(read).toEqual([5]);
    expect(await page("per_14", () => true)).toEqual({ ids: ids.slice(15), next: "per_19" });
    expect(await page("per_19", () => true)).toEqual({ ids: [] });
    expect((await page(undefined, (id) => id > "per_07")).ids).toEqual(ids.slice(8, 13));
    expect(read).toEqual([5, 15]);
  });

  test("counts the open asks of all trees, with the time of the oldest", async () => {
    const store = await open();
    await addTree(store);
    await addSession(store, "ses_other");
    expect(await store.permissions.countOpenAsks()).toEqual({ count: 0 });
    await openAskedCall(store, ref, ["per_b"]);
    store.advance(600_000);
    await openAskedCall(store, callRef("call_1", "ses_other", "ses_other"), ["per_x", "per_y"]);
    const [first, second] = (await store.permissions.openAsks({ limit: 2 })).map(({ request }) => request.created);
    expect(first).not.toBe(second);
    expect(await store.permissions.countOpenAsks()).toEqual({ count: 3, oldest: first });
    await store.permissions.settle(await answer(store, ref, "per_b"));
    expect(await store.permissions.countOpenAsks()).toEqual({ count: 2, oldest: second });
  });

  test("counts the open asks of all trees that stay open beyond a time", async () => {
    const store = await open();
    await addTree(store);
    await addSession(store, "ses_other");
    await openAskedCall(store, ref, ["per_b"]);
    store.advance(600_000);
    await openAskedCall(store, callRef("call_1", "ses_other", "ses_other"), ["per_x", "per_y"]);
    const [first, , last] = (await store.permissions.openAsks({ limit: 3 })).map(({ request }) => request.expires);
    expect(await store.permissions.countLongAsks((first ?? 0) - 1)).toBe(3);
    expect(await store.permissions.countLongAsks(first ?? 0)).toBe(2);
    expect(await store.permissions.countLongAsks(last ?? 0)).toBe(0);
    await store.permissions.settle(await answer(store, callRef("call_1", "ses_other", "ses_other"), "per_x"));
    expect(await store.permissions.countLongAsks(first ?? 0)).toBe(1);
  });

  test("lists all asks of a call in order, with their settlements", async () => {
    const store = await open();
    await addSession(store);
    await openAskedCall(store, ref, ["per_b", "per_a"]);
    await store.permissions.settle(await answer(store, ref, "per_b"));
    const all = await store.permissions.asksOf(ref);
    expect(all.map(({ request, settled }) => [request.id, settled?.by])).toEqual([
      ["per_b", "bob"],
      ["per_a", undefined],
    ]);
    expect(await store.permissions.asksOf(callRef("call_none"))).toEqual([]);
  });

  test("lists asks past their deadline until they are settled", async () => {
    const store = await open();
    await addSession(store);
    await openAskedCall(store, ref, ["per_1"]);
    store.advance(askMs - 1);
    expect(await store.permissions.dueAsks(10)).toEqual([]);
    store.advance(1);
    expect((await store.permissions.dueAsks(10)).map(({ request }) => request.id)).toEqual(["per_1"]);
    await store.permissions.settle(await answer(store, ref, "per_1", { expired: true }));
    expect(await store.permissions.dueAsks(10)).toEqual([]);
  });

  test("lists an ask with a step that is due until it is taken or the ask settled, also after a restart", async () => {
    const store = await open();
    await addSession(store);
    await openEscalating(store, ref, "per_1");
    await openEscalating(store, callRef("call_2"), "per_2");
    const due = async ({ permissions }: OpenedStore) =>
      (await permissions.dueAsks(10)).map(({ request }) => request.id);
    store.advance(stepMs - 1);
    expect(await due(store)).toEqual([]);
    store.advance(1);
    expect(await due(store)).toEqual(["per_1", "per_2"]);
    expect(await store.permissions.escalate(await escalationOf(store, ref, "per_1"))).toBe(true);
    expect(await due(store)).toEqual(["per_2"]);
    const reopened = await store.reopen();
    expect(await due(reopened)).toEqual(["per_2"]);
    await reopened.permissions.settle(await answer(reopened, callRef("call_2"), "per_2"));
    expect(await due(reopened)).toEqual([]);
    reopened.advance(stepMs);
    expect(await due(reopened)).toEqual(["per_1"]);
    expect(await reopened.permissions.escalate(await escalationOf(reopened, ref, "per_1"))).toBe(true);
    expect(await due(reopened)).toEqual([]);
    const events = (await logOf(reopened)).flatMap(({ event }) =>
      event.case === "permissionEscalated" ? [event.value.escalations.map(({ taken }) => taken > 0)] : [],
    );
    expect(events).toEqual([
      [true, false],
      [true, true],
    ]);
    reopened.advance(askMs);
    expect(await due(reopened)).toEqual(["per_1"]);
  });

  test("a step writes the notices of those that it adds, and no second one where there is one", async () => {
    const store = await open();
    await addSession(store);
    const notice = (channel: string) => ({
      ask: "per_1",
      channel,
      recipient: "",
      owner: "",
      leaseMs,
      dead: "",
      dueAt: store.calls.now(),
    });
    await openEscalating(store, ref, "per_1", [notice("ops")]);
    store.advance(stepMs);
    const claim = () =>
      store.notices.claimNotices({
        owner,
        leaseMs,
        channels: new Map([
          ["ops", 9],
          ["pager", 9],
        ]),
      });
    expect((await claim()).map(({ channel, phase }) => [channel, phase])).toEqual([["ops", "opened"]]);
    const step = await escalationOf(store, ref, "per_1");
    await store.permissions.escalate({ ...step, notices: [notice("ops"), notice("pager"), notice("pager")] });
    expect((await claim()).map(({ channel, phase }) => [channel, phase])).toEqual([["pager", "opened"]]);
    await store.permissions.settle(await answer(store, ref, "per_1"));
    store.advance(leaseMs + 1);
    expect((await claim()).map(({ channel, phase }) => [channel, phase])).toEqual([
      ["ops", "settled"],
      ["pager", "settled"],
    ]);
  });

  test("ends the lease of a call that waits for no ask, with the progress that says for what it waits", async () => {
    const store = await open();
    await addSession(store);
    const fence = fenceOf(await openCall(store, ref));
    const progress = create(ToolProgressSchema, { callId: "call_1", title: "Waiting for a free slot" });
    const step = { fence, version: 1, asks: [], withdraw: [], message: "", maxOpenAsks: 10, dueMs: 0, progress };
    expect(await store.calls.openAsks(step)).toBe(true);
    expect(await recordOf(store, ref)).toMatchObject({ owner: "", version: 2 });
    expect((await logOf(store)).map(({ event }) => event.value)).toMatchObject([{}, progress]);
    expect(await store.calls.orphans()).toMatchObject([{ ref, started: false }]);
  });

  test("has the open asks when the store is opened again", async () => {
    const store = await open();
    await addSession(store);
    await openAskedCall(store, ref, ["per_1"]);
    const before = await store.permissions.openAsks({ limit: 10 });
    const reopened = await store.reopen();
    expect(await reopened.permissions.openAsks({ limit: 10 })).toEqual(before);
    expect(await reopened.permissions.settle(await answer(reopened, ref, "per_1"))).toMatchObject({ result: "won" });
  });
}
