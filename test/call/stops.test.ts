import { setTimeout as delay } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { StopTargetSchema } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import { maxStopsAgeMs } from "../../src/call/stops.ts";
import { agent } from "../model/clients.ts";
import { startReplica } from "./replica.ts";

// News of a stop reach other replicas sooner, but may be lost.
test("a stop at a store that replicas share waits until the others start nothing by what they read before", async () => {
  const { calls } = await startReplica({ tools: [], through: () => ({ isShared: true }) });
  const target = create(StopTargetSchema, { target: { case: "agent", value: "free" } });
  const stopping = calls.stop(agent, { target, reason: "" });
  const first = await Promise.race([stopping.then(() => "it returned"), delay(maxStopsAgeMs, "they are too old")]);
  expect(first).toBe("they are too old");
  await stopping;
});
