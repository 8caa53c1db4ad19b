import { expect, test } from "vitest";
import type { NewNotice, NoticeStore } from "../../../src/reach/ports.ts";
import {
  addSession,
  answer,
  callRef,
  completed,
  day,
  fenceOf,
  leaseMs,
  type OpenedStore,
  type OpenStore,
  openAsks,
  openCall,
  recordOf,
} from "../fixture.ts";

const ref = callRef();

/** Contract of `NoticeStore`, and of the steps that write notices. */
export function noticesContract(open: OpenStore): void {
  const notice = (store: OpenedStore, fields: Partial<NewNotice> = {}): NewNotice => ({
    ...{ ask: "per_1", channel: "ops", dueAt: store.calls.now(), owner: "", leaseMs, recipient: "", dead: "" },
    ...fields,
  });

  async function opened(fields: Partial<NewNotice> = {}) {
    const store = await open();
    await addSession(store);
    await openCall(store, ref);
    await openAsks(store, ref, ["per_1"], { notices: [notice(store, fields)] });
    return store;
  }

  const claim = ({ notices }: { notices: NoticeStore }, owner = "replica_1", limit = 10) =>
    notices.claimNotices({ owner, leaseMs, channels: new Map([["ops", limit]]) });
  const due = { ask: "per_1", channel: "ops", recipient: "", phase: "opened", attempts: 0, ref: "" };
  const waitingIn = async ({ notices }: { notices: NoticeStore }) =>
    (await notices.countNotices()).values().reduce((sum, { waiting }) => sum + waiting, 0);

  test("notices of two persons by one channel are separate, and all are listed with their states, newest first", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, ref);
    const ofAsk = (ask: string, people: readonly string[]) =>
      people.map((recipient) => notice(store, { ask, recipient, owner: recipient === "prs_a" ? "replica_1" : "" }));
    await openAsks(store, ref, ["per_1"], { notices: ofAsk("per_1", ["prs_a", "prs_b"]) });
    const [claimed] = await claim(store);
    expect(claimed).toEqual({ ...due, recipient: "prs_b" });
    const at = store.calls.now() + 2_000;
    await store.notices.noteNotice({ ...due, phase: "opened", recipient: "prs_a" }, "replica_1", {
      ...{ result: "accepted", ref: "m1" },
    });
    await store.notices.noteNotice({ ...due, phase: "opened", recipient: "prs_b" }, "replica_1", {
      ...{ result: "retry", at, why: "it answered 503" },
    });
    store.advance(1_000);
    const full = "the queue is full";
    await openAsks(store, ref, ["per_2"], { notices: [notice(store, { ask: "per_2", dead: full })] });
    expect(await waitingIn(store)).toBe(1);
    const listed = await store.notices.listNotices();
    expect(listed[0]).toMatchObject({ ask: "per_2", channel: "ops", recipient: "", state: "dead", why: full });
    expect(new Map(listed.slice(1).map(({ recipient, ...rest }) => [recipient, rest]))).toMatchObject(
      new Map([
        ["prs_a", { ask: "per_1", state: "sent", attempts: 0 }],
        ["prs_b", { ask: "per_1", state: "opened", attempts: 1, dueAt: at, why: "it answered 503" }],
      ]),
    );
    await store.permissions.settle(await answer(store, ref, "per_1"));
    store.advance(2_000);
    expect((await claim(store)).map(({ recipient, phase }) => [recipient, phase])).toEqual(
      expect.arrayContaining([
        ["prs_a", "settled"],
        ["prs_b", "settled"],
      ]),
    );
  });

  test("a due notice is claimed by one replica, and by another one once the lease has ended", async () => {
    const store = await opened();
    expect(await claim(store, "replica_1", 0)).toEqual([]);
    expect(
      await store.notices.claimNotices({ owner: "replica_1", leaseMs, channels: new Map([["other", 10]]) }),
    ).toEqual([]);
    expect(await claim(store)).toEqual([due]);
    expect(await claim(store, "replica_2")).toEqual([]);
    store.advance(leaseMs + 1);
    expect(await claim(store, "replica_2")).toEqual([due]);
    // The first replica has lost it.
    await store.notices.noteNotice({ ...due, phase: "opened" }, "replica_1", { result: "accepted", ref: "lost" });
    expect(await waitingIn(store)).toBe(1);
    await store.notices.noteNotice({ ...due, phase: "opened" }, "replica_2", { result: "accepted", ref: "m1" });
    expect(await waitingIn(store)).toBe(0);
  });

  test("a notice that its replica claimed with the request is claimed by nobody else, and outlives a restart", async () => {
    const store = await opened({ owner: "replica_1" });
    expect(await claim(store, "replica_2")).toEqual([]);
    const again = await store.reopen();
    again.advance(leaseMs + 1);
    expect(await claim(again, "replica_2")).toEqual([due]);
  });

  test("a notice is not due before its time, and again at the time of its next attempt", async () => {
    const store = await opened({ dueAt: (await open()).calls.now() + 60_000 });
    expect(await claim(store)).toEqual([]);
    store.advance(60_001);
    expect(await claim(store)).toEqual([due]);
    const at = store.calls.now() + 2_000;
    await store.notices.noteNotice({ ...due, phase: "opened" }, "replica_1", {
      result: "retry",
      at,
      why: "it answered 503",
    });
    expect(await claim(store)).toEqual([]);
    store.advance(2_001);
    expect(await claim(store)).toEqual([{ ...due, attempts: 1 }]);
  });

  test("the answer to a request makes its notice due again, with the name of its message", async () => {
    const store = await opened({ owner: "replica_1" });
    await store.notices.noteNotice({ ...due, phase: "opened" }, "replica_1", { result: "accepted", ref: "m1" });
    expect(await claim(store)).toEqual([]);
    await store.permissions.settle(await answer(store, ref, "per_1"));
    expect(await claim(store)).toEqual([{ ...due, phase: "settled", ref: "m1" }]);
    await store.notices.noteNotice({ ...due, phase: "settled" }, "replica_1", { result: "accepted", ref: "m1" });
    store.advance(leaseMs + 1);
    expect(await claim(store)).toEqual([]);
  });

  test("the end of a call makes the notices of its requests due, too", async () => {
    const store = await opened({ owner: "replica_1" });
    await store.notices.noteNotice({ ...due, phase: "opened" }, "replica_1", { result: "accepted", ref: "m1" });
    const fence = { ...fenceOf(await recordOf(store, ref)), owner: "replica_1" };
    await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref) });
    // Nothing of the tree is open by now, and the check for orphans finds that.
    await store.calls.orphans();
    expect(await claim(store)).toEqual([{ ...due, phase: "settled", ref: "m1" }]);
  });

  test("a request that is settled while its notice is being sent is reported after that, by its sender or once the lease has ended", async () => {
    const store = await opened({ owner: "replica_1" });
    await store.permissions.settle(await answer(store, ref, "per_1"));
    expect(await claim(store, "replica_2")).toEqual([]);
    await store.notices.noteNotice({ ...due, phase: "opened" }, "replica_1", { result: "accepted", ref: "m1" });
    expect(await claim(store, "replica_2")).toEqual([{ ...due, phase: "settled", ref: "m1" }]);
  });

  test("a notice that nobody tried to send before the settlement is never sent", async () => {
    const store = await opened({ dueAt: (await open()).calls.now() + 60_000 });
    await store.permissions.settle(await answer(store, ref, "per_1"));
    store.advance(120_000);
    expect(await claim(store)).toEqual([]);
    expect(await waitingIn(store)).toBe(0);
  });

  test("a notice that was never accepted is not reported as settled either", async () => {
    const store = await opened({ owner: "replica_1" });
    await store.notices.noteNotice({ ...due, phase: "opened" }, "replica_1", {
      result: "dead",
      why: "it answered 400",
    });
    store.advance(leaseMs + 1);
    expect(await claim(store)).toEqual([]);
    await store.permissions.settle(await answer(store, ref, "per_1"));
    expect(await claim(store)).toEqual([]);
  });

  test("a request without a notice leaves no record of one, also at its end", async () => {
    const store = await open();
    await addSession(store);
    await openCall(store, ref);
    await openAsks(store, ref, ["per_1"]);
    expect(await waitingIn(store)).toBe(0);
    await store.permissions.settle(await answer(store, ref, "per_1"));
    expect(await waitingIn(store)).toBe(0);
    expect(await claim(store)).toEqual([]);
  });

  test("a claim takes no more of a channel than it names, over all trees, and nothing of other channels", async () => {
    const store = await open();
    for (const tree of ["ses_a", "ses_b", "ses_c"]) {
      await addSession(store, tree);
      const call = callRef("call_1", tree, tree);
      await openCall(store, call);
      const notices = ["ops", "other"].map((channel) => notice(store, { ask: `per_${tree}`, channel }));
      await openAsks(store, call, [`per_${tree}`], { notices });
    }
    expect(await claim(store, "replica_1", 2)).toHaveLength(2);
    expect(await claim(store, "replica_2", 2)).toHaveLength(1);
    expect(await waitingIn(store)).toBe(6);
  });

  test("a notice ends with the retention of its request, and keeps no tree", async () => {
    const store = await opened();
    const { version } = await recordOf(store, ref);
    await store.calls.finishCall({ ref, guard: { version }, part: completed(ref) });
    expect(await waitingIn(store)).toBe(0);
    await openCall(store, callRef("call_2"));
    await openAsks(store, callRef("call_2"), ["per_2"], {
      notices: [notice(store, { ask: "per_2", owner: "replica_1" })],
    });
    const again = await recordOf(store, callRef("call_2"));
    await store.calls.finishCall({ ref: again.ref, guard: { version: again.version }, part: completed(again.ref) });
    expect(await waitingIn(store)).toBe(1);
    store.advance(8 * day);
    await store.calls.sweep();
    expect(await waitingIn(store)).toBe(0);
  });
}
