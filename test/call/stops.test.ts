import type timers from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { beforeEach, expect, test, vi } from "vitest";
import { StopTargetSchema } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import { maxStopsAgeMs } from "../../src/call/stopped.ts";
import { agent } from "../model/clients.ts";
import { startReplica } from "./replica.ts";

const { waits } = vi.hoisted(() => ({ waits: [] as number[] }));
vi.mock("node:timers/promises", async (original) => {
  const real = await original<typeof timers>();
  const setTimeout: typeof real.setTimeout = (ms = 0, ...rest) => {
    waits.push(ms);
    return real.setTimeout(ms, ...rest);
  };
  return { ...real, setTimeout };
});
beforeEach(() => void waits.splice(0));

test.each([
  ["shared with other replicas waits until they start nothing by what they read before", true],
  ["of one replica waits for nothing", false],
])("a stop at a store %s", async (_, isShared) => {
  const { calls } = await startReplica({ tools: [], through: () => ({ isShared }) });
  const target = create(StopTargetSchema, { target: { case: "agent", value: "free" } });
  await calls.stop(agent, { target, reason: "" });
  // News of the stop reach them sooner, but may be lost.
  expect(waits.some((ms) => ms > maxStopsAgeMs)).toBe(isShared);
});
