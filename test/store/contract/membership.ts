import { expect, test } from "vitest";
import { addTree, callRef, type OpenStore, openCall } from "../fixture.ts";

/** Contract of `StoreMembership`. */
export function membershipContract(open: OpenStore): void {
  test("has the same id and contents when it is opened again", async () => {
    const store = await open();
    await addTree(store);
    await openCall(store, callRef());
    await store.calls.recordRead("ses_root", "/w/a", "1");
    const before = await store.calls.getSession("ses_root");
    const { calls } = await store.reopen();
    expect(calls.storeId).toBe(store.calls.storeId);
    expect(await calls.getSession("ses_root")).toEqual(before);
    expect((await calls.getCall("ses_root", "call_1"))?.part.state.case).toBe("pending");
    expect(await calls.getRead("ses_root", "/w/a")).toBe("1");
    expect(await calls.ready()).toBe(true);
  });

  test("gives each empty store another id", async () => {
    const [one, other] = [await open(), await open()];
    expect(one.calls.storeId).not.toBe(other.calls.storeId);
  });

  test("agrees with its own policy any number of times", async () => {
    const { calls } = await open();
    expect([await calls.agrees("policy 1"), await calls.agrees("policy 1")]).toEqual([true, true]);
  });
}
