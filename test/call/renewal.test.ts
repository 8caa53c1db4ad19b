import { setTimeout as delay } from "node:timers/promises";
import { expect, test } from "vitest";
import { startReplica } from "./replica.ts";

const leaseMs = 100;

test("leases that are confirmed late are renewed again at once, since they count from the request", async () => {
  let asked = 0;
  const { calls } = await startReplica({
    tools: [],
    leaseMs,
    through: (store) => ({
      async renewLeases(owner, ms) {
        asked += 1;
        if (asked === 1) await delay(leaseMs);
        return await store.calls.renewLeases(owner, ms);
      },
    }),
  });
  await calls.renew();
  expect(asked).toBeGreaterThan(1);
});
