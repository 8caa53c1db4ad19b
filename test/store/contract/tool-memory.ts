import { expect, test } from "vitest";
import { addTree, type OpenStore } from "../fixture.ts";

/** Contract of `ToolMemory`. */
export function toolMemoryContract(open: OpenStore): void {
  test("stores the digest of each file that a tree has read", async () => {
    const { calls } = await open();
    await calls.recordRead("ses_root", "/w/a", "1");
    await calls.recordRead("ses_root", "/w/a", "2");
    expect(await calls.getRead("ses_root", "/w/a")).toBe("2");
    expect(await calls.getRead("ses_root", "/w/b")).toBeUndefined();
    expect(await calls.getRead("ses_other", "/w/a")).toBeUndefined();
  });

  test("stores values of tools per session, separate from those of its parent", async () => {
    const store = await open();
    await addTree(store);
    const [root, child] = ["ses_root", "ses_child"].map((sessionId) => ({ root: "ses_root", sessionId }));
    if (!root || !child) throw new Error("there must be two sessions");
    await store.calls.setState(root, "todos", '["a"]');
    await store.calls.setState(root, "todos", '["ä"]');
    await store.calls.setState(child, "other", "{}");
    const { calls } = await store.reopen();
    expect(await calls.getState(root, "todos")).toBe('["ä"]');
    expect(await calls.getState(child, "todos")).toBeUndefined();
    expect(await calls.getState(child, "other")).toBe("{}");
  });
}
