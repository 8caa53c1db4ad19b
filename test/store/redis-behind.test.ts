import { expect, onTestFinished, test } from "vitest";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { createSessions } from "../../src/call/sessions.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { startWire } from "../faults/wire.ts";
import { startRedis } from "./redis-server.ts";
import { quiet } from "./redis-store.ts";

test("a replica that is cut off does not know if a later store id is wrong: it is unavailable", async () => {
  const server = await startRedis();
  onTestFinished(server.stop);
  const [node] = server.nodes;
  if (node === undefined || !("path" in node)) throw new Error("Redis does not listen on a socket");
  const wire = await startWire(node);
  onTestFinished(wire.close);
  const [other, cutOff] = [
    await openRedisStore({ url: server.url, log: quiet }),
    await openRedisStore({ url: wire.url, log: quiet }),
  ];
  onTestFinished(() => other.calls.close());
  onTestFinished(() => cutOff.calls.close());
  const { expectStore } = createSessions({ store: cutOff.calls, workspaces: {}, agents: new Set() });
  const before = cutOff.calls.storeId;
  await expectStore(before);

  wire.set("reset");
  await server.restart();
  await other.calls.verifyIds();
  const after = other.calls.storeId;
  expect([after === before, cutOff.calls.storeId]).toEqual([false, before]);
  await expect(expectStore(after)).rejects.toMatchObject({ reason: ErrorReason.STORE_UNAVAILABLE });
  wire.set("open");
  await expectStore(after);
  await expect(expectStore(before)).rejects.toMatchObject({ reason: ErrorReason.STORE_CHANGED });
});
