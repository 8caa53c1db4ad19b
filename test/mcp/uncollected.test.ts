import { expect, test } from "vitest";
import { createUncollectedCalls } from "../../src/agents/mcp/uncollected-calls.ts";

const call = (n: number, text = "") => ({
  ...{ sessionId: "ses_1", callId: `c${n}`, tool: "bash", input: { n, text } },
});

test("an identical call takes the oldest uncollected one, once, and another principal takes none", () => {
  const callsOf = createUncollectedCalls(() => 0);
  callsOf("ann").add(call(1));
  callsOf("ann").add({ ...call(1), callId: "c2" });
  expect(callsOf("bob").take(call(1))).toBeUndefined();
  expect([1, 2, 3].map(() => callsOf("ann").take(call(1))?.callId)).toEqual(["c1", "c2", undefined]);
});

test("calls whose inputs are long together are forgotten, the oldest first", () => {
  const calls = createUncollectedCalls(() => 0)("ann");
  for (let n = 0; n < 40; n += 1) calls.add(call(n, "x".repeat(1_000_000)));
  expect(calls.collect("ses_1", "c6")).toBeUndefined();
  expect(calls.collect("ses_1", "c39")).toBeDefined();
});
