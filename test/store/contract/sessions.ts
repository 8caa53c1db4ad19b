import { expect, test } from "vitest";
import { addSession, addTree, callRef, completed, fenceOf, type OpenStore, openCall } from "../fixture.ts";

/** Contract of `SessionStore`. */
export function sessionsContract(open: OpenStore): void {
  test("returns the first session when one with the same id is created", async () => {
    const store = await open();
    await addSession(store, "ses_root", { title: "first" });
    await addSession(store, "ses_root", { title: "second" });
    expect(await store.calls.getSession("ses_root")).toMatchObject({ title: "first", owner: "alice", closed: 0 });
    expect(await store.calls.listSessions({ limit: 10 })).toHaveLength(1);
  });

  test("creates one session when concurrent callers use the same id", async () => {
    const store = await open();
    const created = Array.from({ length: 20 }, (_, index) =>
      addSession(store, "ses_root", { title: `number ${index}` }),
    );
    await Promise.all(created);
    expect(await store.calls.listSessions({ limit: 10 })).toHaveLength(1);
  });

  test("returns nothing for an unknown session", async () => {
    const store = await open();
    expect(await store.calls.getSession("ses_none")).toBeUndefined();
  });

  test("adds a child to the tree of its parent's root", async () => {
    const store = await open();
    await addTree(store);
    expect((await store.calls.getSession("ses_grandchild"))?.rootSessionId).toBe("ses_root");
  });

  test("lists sessions newest first, by owner and by tree, in pages", async () => {
    const store = await open();
    await addTree(store);
    await addSession(store, "ses_other", { owner: "carol" });
    const list = async (filter: { owner?: string; root?: string; before?: string; limit: number }) =>
      (await store.calls.listSessions(filter)).map(({ id }) => id);
    expect(await list({ limit: 10 })).toEqual(["ses_other", "ses_grandchild", "ses_child", "ses_root"]);
    expect(await list({ owner: "carol", limit: 10 })).toEqual(["ses_other"]);
    expect(await list({ root: "ses_root", limit: 10 })).toEqual(["ses_grandchild", "ses_child", "ses_root"]);
    expect(await list({ owner: "carol", root: "ses_root", limit: 10 })).toEqual([]);
    expect(await list({ limit: 2 })).toEqual(["ses_other", "ses_grandchild"]);
    expect(await list({ before: "ses_grandchild", limit: 2 })).toEqual(["ses_child", "ses_root"]);
  });

  test("closes a session with its descendants and returns the open calls of all of them", async () => {
    const store = await open();
    await addTree(store);
    const ended = await openCall(store, callRef("call_ended"));
    const { calls } = store;
    await calls.finishCall({ ref: ended.ref, guard: { fence: fenceOf(ended) }, part: completed(ended.ref) });
    await openCall(store, callRef("call_root"));
    await openCall(store, callRef("call_deep", "ses_grandchild"));

    const openCalls = await calls.closeSession("ses_root");
    expect(openCalls).toHaveLength(2);
    expect(openCalls).toEqual(
      expect.arrayContaining([callRef("call_root"), { ...callRef("call_deep", "ses_grandchild"), root: "ses_root" }]),
    );
    for (const id of ["ses_root", "ses_child", "ses_grandchild"]) {
      expect((await calls.getSession(id))?.closed).toBe(calls.now());
    }
  });

  test("returns existing calls of a closed session, and leaves its ancestors open", async () => {
    const store = await open();
    await addTree(store);
    await openCall(store, callRef("call_before", "ses_child"));
    await store.calls.closeSession("ses_child");
    expect(await store.calls.closeSession("ses_child")).toHaveLength(1);
    expect((await openCall(store, callRef("call_before", "ses_child"))).ref.callId).toBe("call_before");
    expect((await openCall(store, callRef("call_1"))).ref.sessionId).toBe("ses_root");
  });
}
