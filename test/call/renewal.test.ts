import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import type { CallStore } from "../../src/call/ports.ts";
import { createReplica } from "../../src/compose/replica.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { quiet } from "../store/redis-store.ts";

const leaseMs = 100;

test("leases that are confirmed late are renewed again at once, since they count from the request", async () => {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-renewal-"));
  const store = await openSqliteStore({ directory });
  onTestFinished(async () => {
    await store.calls.close();
    await rm(directory, { recursive: true, force: true });
  });
  let asked = 0;
  const slow: Pick<CallStore, "renewLeases"> = {
    async renewLeases(owner, ms) {
      asked += 1;
      if (asked === 1) await delay(leaseMs);
      return await store.calls.renewLeases(owner, ms);
    },
  };
  const { calls } = createReplica({
    config: {
      askMs: 60_000,
      dataDirectory: "/data",
      file: "/toolgate.toml",
      leaseMs,
      limits: {
        requestBytes: 65_536,
        inputBytes: 65_536,
        outputBytes: 65_536,
        timeoutMs: 60_000,
        maxTimeoutMs: 60_000,
        openAsks: 10,
        runningCalls: 10,
      },
      unattended: "wait",
      workspaces: new Map([["default", directory]]),
    },
    rules: { config: [], agents: new Map() },
    store: { ...store, calls: { ...store.calls, ...slow } },
    replicaId: "r1",
    tools: [],
    observer: { began: () => ({ step: (_, work) => work(undefined), over() {} }), ended() {} },
    log: quiet,
  });
  await calls.renew();
  expect(asked).toBeGreaterThan(1);
});
