import { expect, test } from "vitest";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { addSession, addTree, callRef, completed, fenceOf, type OpenStore, openCall, refusal } from "../fixture.ts";

export function sessionsContract(open: OpenStore): void {
  test("a session that is made again is the first one", async () => {
    const store = await open();
    await addSession(store, "ses_root", { title: "first" });
    await addSession(store, "ses_root", { title: "second" });
    expect(await store.calls.getSession("ses_root")).toMatchObject({ title: "first", owner: "alice", closed: 0 });
    expect(await store.calls.listSessions({ limit: 10 })).toHaveLength(1);
  });

  test("of sessions made at the same time under one id, one is made and all get it", async () => {
    const store = await open();
    const made = Array.from({ length: 20 }, (_, index) => addSession(store, "ses_root", { title: `number ${index}` }));
    await Promise.all(made);
    expect(await store.calls.listSessions({ limit: 10 })).toHaveLength(1);
  });

  test("a session that was never made is not there", async () => {
    const store = await open();
    expect(await store.calls.getSession("ses_none")).toBeUndefined();
    expect(await refusal(openCall(store, callRef()))).toMatchObject({ reason: ErrorReason.NO_SUCH_SESSION });
    expect(await refusal(store.calls.closeSession("ses_none"))).toMatchObject({ reason: ErrorReason.NO_SUCH_SESSION });
  });

  test("a child belongs to the tree of its parent's root", async () => {
    const store = await open();
    await addTree(store);
    expect((await store.calls.getSession("ses_grandchild"))?.rootSessionId).toBe("ses_root");
  });

  test("sessions are listed newest first, by owner and by tree, page by page", async () => {
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

  test("closing a session closes its descendants and names the open calls of all of them", async () => {
    const store = await open();
    await addTree(store);
    const ended = await openCall(store, callRef("call_ended"));
    const { calls } = store;
    await calls.finishCall({ ref: ended.ref, guard: { fence: fenceOf(ended) }, part: completed(ended.ref) });
    await openCall(store, callRef("call_root"));
    await openCall(store, callRef("call_deep", "ses_grandchild"));

    const left = await calls.closeSession("ses_root");
    expect(left).toHaveLength(2);
    expect(left).toEqual(
      expect.arrayContaining([callRef("call_root"), { ...callRef("call_deep", "ses_grandchild"), root: "ses_root" }]),
    );
    for (const id of ["ses_root", "ses_child", "ses_grandchild"]) {
      expect((await calls.getSession(id))?.closed).toBe(calls.now());
    }
  });

  test("a closed session takes no calls and no children, and can be closed again", async () => {
    const store = await open();
    await addTree(store);
    await openCall(store, callRef("call_before", "ses_child"));
    await store.calls.closeSession("ses_child");
    const closed = { reason: ErrorReason.SESSION_CLOSED };
    expect(await refusal(openCall(store, callRef("call_1", "ses_child")))).toMatchObject(closed);
    expect(await refusal(openCall(store, callRef("call_1", "ses_grandchild")))).toMatchObject(closed);
    expect(await refusal(addSession(store, "ses_late", { parentSessionId: "ses_child" }))).toMatchObject(closed);
    expect(await store.calls.closeSession("ses_child")).toHaveLength(1);
    expect((await openCall(store, callRef("call_before", "ses_child"))).ref.callId).toBe("call_before");
    expect((await openCall(store, callRef("call_1"))).ref.sessionId).toBe("ses_root");
  });

  test("the tree remembers what it has read", async () => {
    const { calls } = await open();
    await calls.recordRead("ses_root", "/w/a", "1");
    await calls.recordRead("ses_root", "/w/a", "2");
    expect(await calls.getRead("ses_root", "/w/a")).toBe("2");
    expect(await calls.getRead("ses_root", "/w/b")).toBeUndefined();
    expect(await calls.getRead("ses_other", "/w/a")).toBeUndefined();
  });

  test("a session keeps what its tools give it, apart from its parent's", async () => {
    const store = await open();
    await addTree(store);
    const [root, child] = ["ses_root", "ses_child"].map((sessionId) => ({ root: "ses_root", sessionId }));
    if (!root || !child) throw new Error("there are two");
    await store.calls.setState(root, "todos", '["a"]');
    await store.calls.setState(root, "todos", '["ä"]');
    await store.calls.setState(child, "other", "{}");
    const { calls } = await store.reopen();
    expect(await calls.getState(root, "todos")).toBe('["ä"]');
    expect(await calls.getState(child, "todos")).toBeUndefined();
    expect(await calls.getState(child, "other")).toBe("{}");
  });

  test("everything is there after it was closed and opened again", async () => {
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

  test("two empty stores have different ids", async () => {
    const [one, other] = [await open(), await open()];
    expect(one.calls.storeId).not.toBe(other.calls.storeId);
  });
}
