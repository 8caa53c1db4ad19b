import { setImmediate } from "node:timers/promises";
import { afterAll, describe, expect, test } from "vitest";
import { GrantScope } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { everyStep, storeContract } from "./contract.ts";
import { addSession, callRef, grant, logOf, openAskedCall, saveGrant } from "./fixture.ts";
import { startCluster } from "./redis-server.ts";
import { openIn, quiet } from "./redis-store.ts";

const cluster = await startCluster();
afterAll(() => cluster.stop());

storeContract("redis cluster", (options) => openIn(cluster.url, options), everyStep);

describe("redis cluster", () => {
  test("shares a workspace's grants between trees on all masters, and lists the trees together", async () => {
    const store = await openIn(cluster.url);
    const roots = Array.from({ length: 12 }, (_, index) => `ses_${index}`);
    for (const root of roots) await addSession(store, root);
    await saveGrant(store, grant("grt_1", { scope: GrantScope.PROJECT, sessionId: "ses_0" }));
    for (const root of roots) {
      await openAskedCall(store, callRef("call_1", root, root), [`per_${root}`]);
      expect(await store.permissions.adoptGrant(root, "grt_1")).toBe(true);
    }
    const open = await store.permissions.openAsks({ limit: 100 });
    expect(open.map(({ call }) => call.root)).toEqual(roots);
    await store.permissions.revokeGrant("grt_1");
    for (const root of roots) {
      const tree = { root, workspace: "default", agent: "build" };
      expect(await store.permissions.grantsFor(tree)).toMatchObject({
        grants: [],
        rulesVersion: root === "ses_0" ? 2 : 1,
      });
    }
    await store.close();
  });

  test("treats a cluster with one emptied master as another store", async () => {
    const { calls } = await openRedisStore({ url: cluster.url, log: quiet });
    const before = calls.storeId;
    for (const [index] of cluster.nodes.entries()) {
      const { storeId } = calls;
      await cluster.restart(index);
      while (!(await calls.ready()) || calls.storeId === storeId) await setImmediate();
    }
    expect(calls.storeId).not.toBe(before);
    await addSession({ calls });
    expect(await logOf({ calls })).toEqual([]);
    const other = await openRedisStore({ url: cluster.url, log: quiet });
    expect(other.calls.storeId).toBe(calls.storeId);
    await Promise.all([calls.close(), other.calls.close()]);
  });
});
