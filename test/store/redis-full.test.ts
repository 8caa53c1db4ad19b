import { Redis } from "ioredis";
import { afterAll, expect, onTestFinished, test } from "vitest";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import {
  addSession,
  answer,
  askMs,
  callRef,
  completed,
  failed,
  fenceOf,
  leaseMs,
  openAskedCall,
  openCall,
  owner,
  recordOf,
  startCall,
} from "./fixture.ts";
import { startRedis } from "./redis-server.ts";
import { openIn, quiet } from "./redis-store.ts";

const server = await startRedis();
const redis = new Redis(server.nodes[0] as { path: string });
afterAll(async () => {
  redis.disconnect();
  await server.stop();
});
const twenty = Array.from({ length: 20 }, (_, index) => index);

/** Sets the maximum so far below the memory in use that no buffer of a connection makes a difference. */
async function fill(): Promise<void> {
  await redis.set("filler", Buffer.alloc(8 * 1024 * 1024));
  await redis.config("SET", "maxmemory", "4mb");
}

test("in a full Redis new work is refused, and rejects, expiries, cancels, ends, and renewals and ends of leases succeed", async () => {
  const store = await openIn(server.url);
  const { credentials, calls } = await openRedisStore({ url: server.url, log: quiet });
  onTestFinished(() => calls.close());
  onTestFinished(store.close);
  await addSession(store);
  await addSession(store, "ses_closed");
  for (const index of twenty) {
    await startCall(store, callRef(`run_${index}`));
    await openAskedCall(store, callRef(`reject_${index}`), [`per_r${index}`]);
    await openAskedCall(store, callRef(`expire_${index}`), [`per_e${index}`]);
  }
  await openAskedCall(store, callRef("approve"), ["per_a"]);
  // Control: while there is memory, calls are accepted and the store is ready.
  await openCall(store, callRef("before"));
  expect(await store.calls.ready()).toBe(true);

  await fill();
  expect(await store.calls.ready()).toBe(false);
  const refused: unknown = await openCall(store, callRef("new")).catch((error) => error);
  expect(refused).toMatchObject({
    reason: ErrorReason.STORE_UNAVAILABLE,
    message: "the store is not available (Redis has reached its maxmemory): try again with the same ids",
  });
  const approval = await answer(store, callRef("approve"), "per_a", { outcome: PermissionOutcome.ONCE });
  await expect(store.permissions.settle(approval)).rejects.toMatchObject({ reason: ErrorReason.STORE_UNAVAILABLE });
  const credential = { id: "new", roles: [], agents: [], workspaces: [], sha256: "0".repeat(64), label: "" };
  await expect(credentials.add({ ...credential, created: 1, expires: 0, revoked: 0 })).rejects.toMatchObject({
    reason: ErrorReason.STORE_UNAVAILABLE,
  });

  const settle = async (kind: "reject" | "expire", index: number) => {
    const [ref, expired] = [callRef(`${kind}_${index}`), kind === "expire"];
    const outcome = expired ? PermissionOutcome.EXPIRED : PermissionOutcome.REJECT;
    const settlement = await answer(store, ref, `per_${kind[0]}${index}`, { outcome, expired });
    const calls = settlement.calls.map((call) => ({ ...call, part: failed(ref) }));
    return await store.permissions.settle({ ...settlement, calls });
  };
  for (const index of twenty) expect(await settle("reject", index)).toEqual({ result: "won" });
  store.advance(leaseMs / 2);
  const held = await store.calls.renewLeases(owner, leaseMs);
  for (const index of twenty) {
    const ref = callRef(`run_${index}`);
    expect(held).toContainEqual(ref);
    await store.calls.requestCancel(ref, "stop");
    const fence = fenceOf(await recordOf(store, ref));
    expect(await store.calls.finishCall({ ref, guard: { fence }, part: completed(ref) })).toBeDefined();
  }
  store.advance(askMs);
  for (const index of twenty) expect(await settle("expire", index)).toEqual({ result: "won" });
  await store.calls.releaseCalls(owner);
  expect((await recordOf(store, callRef("before"))).owner).toBe("");
  expect(await store.calls.closeSession("ses_closed")).toEqual([]);

  await redis.config("SET", "maxmemory", "0");
  expect(await store.calls.ready()).toBe(true);
  await openCall(store, callRef("after"));
});
