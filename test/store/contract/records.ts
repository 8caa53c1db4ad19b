import { expect, test } from "vitest";
import { addSession, callRef, callSpec, failed, type OpenStore, openCall, recordOf } from "../fixture.ts";

/** Contract of `CallRecordReader`. */
export function recordsContract(open: OpenStore): void {
  test("returns nothing for an unknown call", async () => {
    const store = await open();
    await addSession(store);
    expect(await store.calls.getCall("ses_root", "call_none")).toBeUndefined();
    expect(await store.calls.getCall("ses_none", "call_1")).toBeUndefined();
  });

  test("counts the calls directly before one that were the same request", async () => {
    const store = await open();
    await addSession(store);
    const repeatsOfOpened = async (id: string, requestDigest: string) =>
      (await openCall(store, callRef(id), { spec: callSpec({ requestDigest }) })).repeats;
    const { repeatsOf } = store.calls;
    expect([await repeatsOf("ses_root", "a"), await repeatsOf("ses_none", "a")]).toEqual([0, 0]);
    expect([
      await repeatsOfOpened("c1", "a"),
      await repeatsOfOpened("c2", "a"),
      await repeatsOfOpened("c3", "a"),
    ]).toEqual([0, 1, 2]);
    expect([await repeatsOf("ses_root", "a"), await repeatsOf("ses_root", "b")]).toEqual([3, 0]);
    expect([
      await repeatsOfOpened("c2", "a"),
      await repeatsOfOpened("c4", "b"),
      await repeatsOfOpened("c5", "a"),
    ]).toEqual([1, 0, 0]);
    expect([await repeatsOf("ses_root", "a"), (await recordOf(store, callRef("c3"))).repeats]).toEqual([1, 2]);
    await addSession(store, "ses_other");
    const other = callRef("c6", "ses_other", "ses_other");
    expect((await openCall(store, other, { spec: callSpec({ requestDigest: "a" }) })).repeats).toBe(0);
  });

  test("lists calls in the order of acceptance, all or the open ones, in pages", async () => {
    const store = await open();
    await addSession(store);
    await addSession(store, "ses_other");
    const opened: Record<string, { openedSeq: number }> = {};
    for (const callId of ["call_b", "call_a", "call_d", "call_c"])
      opened[callId] = await openCall(store, callRef(callId));
    await openCall(store, callRef("call_x", "ses_other", "ses_other"));
    await store.calls.finishCall({ ref: callRef("call_a"), guard: { version: 1 }, part: failed(callRef("call_a")) });
    const list = async ({ after = "", ...filter }: { open?: boolean; after?: string; limit: number }) => {
      const last = after && { after: { ref: { callId: after }, openedSeq: opened[after]?.openedSeq ?? 0 } };
      const listed = await store.calls.listCalls({ sessionId: "ses_root", ...filter, ...last });
      return listed.map((record) => record.ref.callId);
    };
    expect(await list({ limit: 10 })).toEqual(["call_b", "call_a", "call_d", "call_c"]);
    expect(await list({ open: true, limit: 10 })).toEqual(["call_b", "call_d", "call_c"]);
    expect(await list({ limit: 2 })).toEqual(["call_b", "call_a"]);
    expect(await list({ after: "call_a", limit: 2 })).toEqual(["call_d", "call_c"]);
    expect(await list({ open: true, after: "call_b", limit: 1 })).toEqual(["call_d"]);
  });
}
