import { expect, test } from "vitest";
import { GrantScope, PermissionOutcome } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { SettleResult } from "../../../src/approval/ports.ts";
import {
  addSession,
  addTree,
  answer,
  askMs,
  ballot,
  callRef,
  callSpec,
  completed,
  delegation,
  failed,
  fenceOf,
  grant,
  kinds,
  leaseMs,
  logOf,
  type OpenedStore,
  type OpenStore,
  openAskedCall,
  openAsks,
  openCall,
  openWaitingCall,
  owner,
  pending,
  recordOf,
  refusal,
  running,
  settled,
  startCall,
  voteOf,
} from "../fixture.ts";

const ref = callRef();
const { ALWAYS, EDITED, EXPIRED, ONCE, REJECT, WITHDRAWN } = PermissionOutcome;
const tree = { root: "ses_root", workspace: "default", agent: "build" };

async function openAsked(open: OpenStore): Promise<OpenedStore> {
  const store = await open();
  await addSession(store);
  await openAskedCall(store, ref, ["per_1"]);
  return store;
}

const won = (results: readonly SettleResult[]) => results.filter(({ result }) => result === "won");

/** Contract of `AskStore.settle`. */
export function settleContract(open: OpenStore): void {
  test("writes an answer with its ask, its call and its event", async () => {
    const store = await openAsked(open);
    expect(await store.permissions.settle(await answer(store, ref, "per_1"))).toEqual({ result: "won" });
    expect(await store.permissions.getAsk("ses_root", "per_1")).toMatchObject({
      settled: { outcome: ONCE, by: "bob" },
      version: 3,
      part: { permissionIds: [], state: { case: "pending" } },
    });
    expect(kinds(await logOf(store))).toEqual(["call_1 pending", "per_1 asked", "per_1 ONCE"]);
  });

  test("lets exactly one of concurrent answers win, and returns the winner to the others", async () => {
    const store = await openAsked(open);
    const answers = await Promise.all(
      Array.from({ length: 50 }, (_, index) => answer(store, ref, "per_1", { by: `person_${index}` })),
    );
    const results = await Promise.all(answers.map((each) => store.permissions.settle(each)));
    expect(won(results)).toHaveLength(1);
    const winner = (await store.permissions.getAsk("ses_root", "per_1"))?.settled;
    const losers = results.filter(({ result }) => result === "lost");
    expect(losers).toHaveLength(49);
    for (const loser of losers) expect(loser).toEqual({ result: "lost", settled: winner });
    expect(results.findIndex(({ result }) => result === "won")).toBe(Number(winner?.by.split("_")[1]));
    expect(kinds(await logOf(store)).filter((kind) => kind.startsWith("per_1"))).toHaveLength(2);
  });

  test("lets exactly one of concurrent answers and withdrawals win", async () => {
    const store = await openAsked(open);
    const answers = await Promise.all(Array.from({ length: 10 }, () => answer(store, ref, "per_1")));
    const [end, ...results] = await Promise.all([
      store.calls.finishCall({ ref, guard: { version: 2 }, part: failed(ref) }),
      ...answers.map((each) => store.permissions.settle(each)),
    ]);
    expect(won(results).length + Number(end !== undefined)).toBe(1);
    expect(kinds(await logOf(store)).filter((kind) => kind.startsWith("per_1 "))).toHaveLength(2);
  });

  test("accepts answers until the deadline, and the expiry from then on", async () => {
    const store = await openAsked(open);
    const expiry = await answer(store, ref, "per_1", { outcome: EXPIRED, by: "", expired: true });
    const reply = await answer(store, ref, "per_1");
    store.advance(askMs);
    const results: SettleResult[] = [];
    for (const each of [expiry, reply, expiry, reply]) results.push(await store.permissions.settle(each));
    expect(results.map(({ result }) => result)).toEqual(["won", "lost", "lost", "lost"]);
    expect(results[3]).toMatchObject({ settled: { outcome: EXPIRED } });
  });

  test("ends the call of a reject in the same step, after the settlements", async () => {
    const store = await open();
    await addSession(store);
    await openAskedCall(store, ref, ["per_1", "per_2"]);
    const ended = failed(ref, ToolErrorReason.REJECTED);
    const both = [settled(ref, "per_1", REJECT), settled(ref, "per_2", WITHDRAWN)];
    const reject = await answer(store, ref, "per_1", { settled: both, calls: [{ ref, version: 2, part: ended }] });
    expect(await store.permissions.settle(reject)).toEqual({ result: "won" });
    expect(kinds(await logOf(store)).slice(3)).toEqual(["per_1 REJECT", "per_2 WITHDRAWN", "call_1 error"]);
    expect(await recordOf(store, ref)).toMatchObject({ version: 3, owner: "", part: { revision: 6n } });
    expect(await store.calls.listCalls({ sessionId: "ses_root", open: true, limit: 10 })).toEqual([]);
  });

  test("ends an orphaned call by an expiry", async () => {
    const store = await openAsked(open);
    store.advance(askMs);
    const ended = failed(ref, ToolErrorReason.EXPIRED);
    const expiry = await answer(store, ref, "per_1", {
      outcome: EXPIRED,
      expired: true,
      calls: [{ ref, version: 2, part: ended }],
    });
    expect(await store.permissions.settle(expiry)).toEqual({ result: "won" });
    expect(await store.calls.orphans()).toEqual([]);
  });

  test("saves the grant of an ALWAYS answer with the answer, and settles asks of other calls", async () => {
    const store = await open();
    await addTree(store);
    const other = callRef("call_other", "ses_child");
    await openAskedCall(store, ref, ["per_1"]);
    await openAskedCall(store, other, ["per_2"]);
    const always = await answer(store, ref, "per_1", {
      settled: [settled(ref, "per_1", ALWAYS), settled(other, "per_2", ALWAYS)],
      calls: [
        { ref, version: 2 },
        { ref: other, version: 2 },
      ],
      grants: [grant("grt_1")],
    });
    expect(await store.permissions.settle(always)).toEqual({ result: "won" });
    expect((await recordOf(store, other)).version).toBe(3);
    expect(await store.permissions.grantsFor(tree)).toMatchObject({ grants: [{ id: "grt_1" }], rulesVersion: 1 });
    const rootLog = kinds(await logOf(store)).slice(3);
    expect(rootLog).toEqual(["per_1 ALWAYS", "per_2 ALWAYS", "grt_1 granted"]);
    expect(kinds(await logOf(store, "ses_child")).slice(2)).toEqual(["per_2 ALWAYS"]);
  });

  test("writes an edited input with the answer", async () => {
    const store = await openAsked(open);
    const part = pending(ref, { command: "make test" });
    const edit = await answer(store, ref, "per_1", { outcome: EDITED, calls: [{ ref, version: 2, part }] });
    expect(await store.permissions.settle(edit)).toEqual({ result: "won" });
    expect(await recordOf(store, ref)).toMatchObject({
      version: 3,
      owner,
      part: { permissionIds: [], state: { case: "pending", value: { input: { command: "make test" } } } },
    });
    expect(kinds(await logOf(store))).toEqual(["call_1 pending", "per_1 asked", "per_1 EDITED", "call_1 pending"]);
    expect(await openAsks(store, ref, ["per_2"])).toBe(true);
  });

  test("has an edited input when the store is opened again", async () => {
    const store = await openAsked(open);
    const part = pending(ref, { command: "make test" });
    await store.permissions.settle(
      await answer(store, ref, "per_1", { outcome: EDITED, calls: [{ ref, version: 2, part }] }),
    );
    const again = await store.reopen();
    expect((await recordOf(again, ref)).part.state.value?.input).toEqual({ command: "make test" });
  });

  test("saves several grants with one answer", async () => {
    const store = await openAsked(open);
    await openAsks(store, ref, ["per_2"]);
    const always = await answer(store, ref, "per_1", {
      settled: [settled(ref, "per_1", ALWAYS), settled(ref, "per_2", ALWAYS)],
      grants: [grant("grt_1"), grant("grt_2", { scope: GrantScope.PROJECT })],
    });
    expect(await store.permissions.settle(always)).toEqual({ result: "won" });
    const { grants, rulesVersion } = await store.permissions.grantsFor(tree);
    expect([grants.map(({ id }) => id), rulesVersion]).toEqual([["grt_1", "grt_2"], 2]);
    expect(kinds(await logOf(store)).slice(-4)).toEqual([
      "per_1 ALWAYS",
      "per_2 ALWAYS",
      "grt_1 granted",
      "grt_2 granted",
    ]);
  });

  test("saves grants at the current asks version", async () => {
    const store = await openAsked(open);
    await openAskedCall(store, callRef("call_2"), ["per_2"]);
    const { asksVersion } = await store.permissions.grantsFor(tree);
    const always = await answer(store, ref, "per_1", { outcome: ALWAYS, grants: [grant("grt_1")], asksVersion });
    expect(await store.permissions.settle(always)).toEqual({ result: "won" });
  });

  test("saves only the grant of the winner", async () => {
    const store = await openAsked(open);
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, index) =>
        answer(store, ref, "per_1", { outcome: ALWAYS, grants: [grant(`grt_${index}`)] }),
      ),
    );
    const results = await Promise.all(answers.map((each) => store.permissions.settle(each)));
    const winner = results.findIndex(({ result }) => result === "won");
    const saved = await store.permissions.listGrants({ includeDead: true, limit: 100 });
    expect(saved.map(({ id }) => id)).toEqual([`grt_${winner}`]);
  });

  test("returns the withdrawal to an answer that lost against the end of its call", async () => {
    const store = await open();
    await addSession(store);
    await openAskedCall(store, ref, ["per_1", "per_2"]);
    const ended = failed(ref);
    const reject = await answer(store, ref, "per_1", { outcome: REJECT, calls: [{ ref, version: 2, part: ended }] });
    const once = await answer(store, ref, "per_2");
    const results = await Promise.all([store.permissions.settle(reject), store.permissions.settle(once)]);
    expect(results[0]).toEqual({ result: "won" });
    expect(results[1]).toMatchObject({ result: "lost", settled: { outcome: WITHDRAWN } });
  });

  test("settles each ask after a refused settlement of all", async () => {
    const store = await open();
    await addSession(store);
    const [ended, large] = [callRef("call_ended"), callRef("call_large")];
    await openAskedCall(store, ref, ["per_1"]);
    await openAskedCall(store, ended, ["per_2"]);
    await openAskedCall(store, large, ["per_3"]);
    const before = await logOf(store);
    const three = await answer(store, ref, "per_1", {
      settled: [settled(ref, "per_1"), settled(ended, "per_2", REJECT), settled(large, "per_3", REJECT)],
      calls: [
        { ref, version: 2 },
        { ref: ended, version: 2, part: failed(ended) },
        { ref: large, version: 2, part: completed(large, "x".repeat(1024 * 1024)) },
      ],
    });
    expect(await refusal(store.permissions.settle(three))).toMatchObject({ limit: "event_bytes" });
    expect(await logOf(store)).toEqual(before);
    for (const [call, id] of [
      [ref, "per_1"],
      [ended, "per_2"],
    ] as const) {
      expect(await store.permissions.settle(await answer(store, call, id))).toEqual({ result: "won" });
    }
    expect((await logOf(store)).at(-1)?.seq).toBe(BigInt(before.length + 2));
  });

  test("names the calls that a replica has to claim: those that wait for no other ask, without an owner", async () => {
    const store = await open();
    await addSession(store);
    const [owned, asking, delegated] = ["call_owned", "call_asking", "call_delegated"].map((id) => callRef(id));
    if (!owned || !asking || !delegated) throw new Error("no refs");
    await openWaitingCall(store, ref, ["per_1"]);
    await openAskedCall(store, owned, ["per_2"]);
    await openWaitingCall(store, asking, ["per_3", "per_4"]);
    await openCall(store, delegated, { spec: callSpec({ delegated: delegation }) });
    await openAsks(store, delegated, ["per_5"], { dueMs: askMs });
    const calls = [ref, owned, asking, delegated];
    const always = await answer(store, ref, "per_1", {
      settled: calls.map((call, index) => settled(call, `per_${index === 3 ? 5 : index + 1}`, ALWAYS)),
      calls: calls.map((call) => ({ ref: call, version: 2 })),
    });
    expect(await store.permissions.settle(always)).toEqual({ result: "won", unclaimed: [ref] });
    expect(await store.calls.orphans()).toMatchObject([{ ref }]);
  });

  test("claims and starts a call with the settlement of its last ask", async () => {
    const store = await open();
    await addSession(store);
    await openWaitingCall(store, ref, ["per_1", "per_2"]);
    await store.permissions.settle(await answer(store, ref, "per_1"));
    const start = { owner: "replica_2", leaseMs, part: running(ref) };
    const once = await answer(store, ref, "per_2", { calls: [{ ref, version: 3, start }] });
    expect(await store.permissions.settle(once)).toEqual({ result: "won" });
    const record = await recordOf(store, ref);
    expect(record).toMatchObject({ owner: "replica_2", epoch: 2, version: 4, attempts: 1 });
    expect(record.part).toMatchObject({ permissionIds: [], revision: 6n, state: { case: "running" } });
    expect(kinds(await logOf(store)).slice(4)).toEqual(["per_2 ONCE", "call_1 running"]);
    expect(await store.calls.renewLeases("replica_2", leaseMs)).toEqual([ref]);
    expect(await store.calls.orphans()).toEqual([]);
    store.advance(leaseMs);
    expect(await store.calls.orphans()).toMatchObject([{ ref, started: true }]);
    expect(await store.calls.claimCall(ref, owner, leaseMs)).toBeUndefined();
    const fence = fenceOf(record);
    expect(await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref) })).toBeDefined();
  });

  test("of concurrent answers that would start the call one starts it", async () => {
    const store = await open();
    await addSession(store);
    await openWaitingCall(store, ref, ["per_1"]);
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, index) =>
        answer(store, ref, "per_1", {
          by: `person_${index}`,
          calls: [{ ref, version: 2, start: { owner: `replica_${index}`, leaseMs, part: running(ref) } }],
        }),
      ),
    );
    const results = await Promise.all(answers.map((each) => store.permissions.settle(each)));
    expect(won(results)).toHaveLength(1);
    const winner = results.findIndex(({ result }) => result === "won");
    expect(await recordOf(store, ref)).toMatchObject({ owner: `replica_${winner}`, attempts: 1, epoch: 2 });
    expect(kinds(await logOf(store)).slice(2)).toEqual(["per_1 ONCE", "call_1 running"]);
  });

  test("of two answers at one replica that would both start the call, the later one takes no lease from it", async () => {
    const store = await open();
    await addSession(store);
    await openWaitingCall(store, ref, ["per_1"]);
    const start = { owner, leaseMs, part: running(ref) };
    const answers = await Promise.all(
      ["bob", "eve"].map((by) => answer(store, ref, "per_1", { by, calls: [{ ref, version: 2, start }] })),
    );
    const results = await Promise.all(answers.map((each) => store.permissions.settle(each)));
    expect(won(results)).toHaveLength(1);
    expect(await store.calls.renewLeases(owner, leaseMs)).toEqual([ref]);
  });

  test("reads the call of an ask with all of its asks", async () => {
    const store = await open();
    await addTree(store);
    const deep = callRef("call_deep", "ses_child");
    await openWaitingCall(store, deep, ["per_1", "per_2"]);
    await store.permissions.settle(await answer(store, deep, "per_1"));
    const found = await store.calls.getCallOfAsk("ses_child", "per_2");
    expect(found).toEqual(await store.calls.getCallWithAsks(deep));
    expect(found?.asks.map(({ request, settled }) => [request.id, settled?.outcome])).toEqual([
      ["per_1", ONCE],
      ["per_2", undefined],
    ]);
    expect(await store.calls.getCallOfAsk("ses_root", "per_2")).toBeUndefined();
    expect(await store.calls.getCallOfAsk("ses_child", "per_none")).toBeUndefined();
  });

  test("a vote leaves its ask open with all votes, and its call waits on", async () => {
    const store = await open();
    await addTree(store);
    const deep = callRef("call_deep", "ses_child");
    await openWaitingCall(store, deep, ["per_1"]);
    for (const voters of [["ann"], ["ann", "bob"]])
      expect(await store.permissions.settle(await ballot(store, deep, "per_1", voters))).toEqual({ result: "won" });
    const asked = await store.permissions.getAsk("ses_child", "per_1");
    expect(asked).toMatchObject({ version: 4, request: { votes: [{ by: "ann" }, { by: "bob" }] } });
    expect(asked?.settled).toBeUndefined();
    expect(await recordOf(store, deep)).toMatchObject({ owner: "", part: { permissionIds: ["per_1"] } });
    expect(await store.calls.orphans()).toEqual([]);
    for (const id of ["ses_root", "ses_child"])
      expect(kinds(await logOf(store, id)).slice(-2)).toEqual(["per_1 voted ann", "per_1 voted ann bob"]);
    const votes = ["ann", "bob", "carol"].map(voteOf);
    const last = await answer(store, deep, "per_1", { settled: [{ ...settled(deep, "per_1"), votes }] });
    expect(await store.permissions.settle(last)).toEqual({ result: "won", unclaimed: [deep] });
    expect((await store.permissions.getAsk("ses_child", "per_1"))?.settled?.votes).toEqual(votes);
  });

  test("each of racing votes counts, and exactly the one that meets the need settles", async () => {
    const [voters, needed] = [40, 25];
    const store = await openAsked(open);
    const cast = async (person: string): Promise<string> => {
      for (;;) {
        const found = await store.permissions.getAsk("ses_root", "per_1");
        if (!found || found.settled) return "late";
        const { request, version } = found;
        const votes = [...request.votes, voteOf(person)];
        const isLast = votes.length === needed;
        const step = {
          ...{ root: "ses_root", askId: "per_1", calls: [{ ref, version }], grants: [], expired: false },
          ...(isLast
            ? { settled: [{ ...settled(ref, "per_1"), votes }] }
            : { settled: [], voted: [{ ...request, votes }] }),
        };
        const { result } = await store.permissions.settle(step);
        if (result !== "retry") return result === "lost" ? "late" : isLast ? "settles" : "counts";
      }
    };
    const outcomes = await Promise.all(Array.from({ length: voters }, (_, i) => cast(`person_${i}`)));
    expect(
      Object.fromEntries(
        Map.groupBy(outcomes, (each) => each)
          .entries()
          .map(([name, all]) => [name, all.length]),
      ),
    ).toEqual({
      ...{ counts: needed - 1, settles: 1, late: voters - needed },
    });
    const counted = (await store.permissions.getAsk("ses_root", "per_1"))?.settled?.votes.map(({ by }) => by) ?? [];
    expect(counted.toSorted()).toEqual(
      outcomes.flatMap((each, i) => (each === "late" ? [] : `person_${i}`)).toSorted(),
    );
    expect(kinds(await logOf(store)).filter((kind) => kind.startsWith("per_1 voted"))).toHaveLength(needed - 1);
  });

  test("settles an ask of a running call", async () => {
    const store = await open();
    await addSession(store);
    await startCall(store, ref);
    await openAsks(store, ref, ["per_1"]);
    expect(await store.permissions.settle(await answer(store, ref, "per_1"))).toEqual({ result: "won" });
    expect(await recordOf(store, ref)).toMatchObject({ version: 4, part: { state: { case: "running" } } });
  });
}
