import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { BegunSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { UseDecision } from "../../src/agents/hooks/delegate.ts";
import { createDecisionStore } from "../../src/edge/hooks/claude-door.ts";

const decision: UseDecision = { case: "begun", value: create(BegunSchema, { assignment: "a" }) };

test("a decision is remembered for its own principal", async () => {
  const memoryOf = createDecisionStore(() => 0);
  await memoryOf("host").put("use", decision);
  expect(await memoryOf("host").get("use")).toEqual({ decision, ageMs: 0 });
  expect(await memoryOf("other-host").get("use")).toBeUndefined();
  await memoryOf("other-host").remove("use");
  expect(await memoryOf("host").get("use")).toBeDefined();
});

test("of more than 10,000 decisions the oldest is forgotten", async () => {
  const memory = createDecisionStore(() => 0)("host");
  for (let i = 0; i <= 10_000; i++) await memory.put(`use ${i}`, decision);
  expect(await memory.get("use 0")).toBeUndefined();
  expect(await memory.get("use 1")).toBeDefined();
  expect(await memory.get("use 10000")).toBeDefined();
});

test("decisions of one principal displace none of another one", async () => {
  const memoryOf = createDecisionStore(() => 0);
  await memoryOf("quiet").put("use", decision);
  for (let i = 0; i <= 10_000; i++) await memoryOf("host").put(`use ${i}`, decision);
  expect(await memoryOf("quiet").get("use")).toBeDefined();
});

test("decisions whose inputs are long together are forgotten, the oldest first", async () => {
  const memory = createDecisionStore(() => 0)("host");
  const long: UseDecision = { case: "begun", value: create(BegunSchema, { input: { text: "x".repeat(1_000_000) } }) };
  for (let i = 0; i < 40; i++) await memory.put(`use ${i}`, long);
  expect(await memory.get("use 6")).toBeUndefined();
  expect(await memory.get("use 39")).toBeDefined();
});

test("of more than 1,000 principals the one that decided least recently is forgotten", async () => {
  const memoryOf = createDecisionStore(() => 0);
  for (let i = 0; i < 1_000; i++) await memoryOf(`host ${i}`).put("use", decision);
  await memoryOf("host 0").get("use");
  await memoryOf("one more").put("use", decision);
  expect(await memoryOf("host 0").get("use")).toBeDefined();
  expect(await memoryOf("host 1").get("use")).toBeUndefined();
});

test("decisions of a principal that was silent for longer than a call lives are forgotten", async () => {
  let time = 0;
  const memoryOf = createDecisionStore(() => time);
  await memoryOf("silent").put("use", decision);
  time = 25 * 3_600_000 - 1;
  await memoryOf("other").put("use", decision);
  time += 1;
  await memoryOf("other").put("use", decision);
  expect(await memoryOf("silent").get("use")).toBeUndefined();
  expect(await memoryOf("other").get("use")).toBeDefined();
});
