import { expect, test } from "vitest";
import type { AgentRunner } from "../../src/agents/runners/runner.ts";
import { createRunnerRegistry } from "../../src/agents/runners/runner-registry.ts";

const runner = (name: string, agents: string[], free: number, owner = "ann"): AgentRunner => ({
  name,
  bypasses: "",
  agents: () => agents,
  serves: (principal) => principal === owner,
  freeCapacity: () => free,
  async *start() {},
});

test("of the runners that serve a principal and an agent, the one with the most free capacity is picked", () => {
  const runners = createRunnerRegistry();
  const added = [
    runner("slow", ["explore"], 1),
    runner("fast", ["explore", "build"], 3),
    runner("other agent", ["plan"], 9),
    runner("other owner", ["explore"], 9, "bob"),
  ];
  const remove = added.map((each) => runners.add(each));
  expect(runners.pick("explore", "ann")).toEqual({ runner: added[1] });
  remove[1]?.();
  expect(runners.pick("explore", "ann")).toEqual({ runner: added[0] });
  expect(runners.of("ann").map(({ name }) => name)).toEqual(["slow", "other agent"]);
});

test("without a runner that serves the agent the problem says what to do", () => {
  const runners = createRunnerRegistry();
  expect(runners.pick("explore", "ann")).toEqual({
    problem: expect.stringMatching(
      /^No agent runner is connected, so the agent "explore" was not started\. .*RunAgents/,
    ),
  });
  runners.add(runner("planner", ["plan"], 1));
  runners.add(runner("other owner", ["explore"], 1, "bob"));
  expect(runners.pick("explore", "ann")).toEqual({
    problem: expect.stringMatching(
      /^No agent runner is connected for the agent "explore", .* connected are runners for: plan\./,
    ),
  });
});

test("a runner without free capacity is busy, and is not picked", () => {
  const runners = createRunnerRegistry();
  runners.add(runner("one", ["explore"], 0));
  expect(runners.pick("explore", "ann")).toEqual({ problem: expect.stringContaining("is busy (one)") });
});

test("a run that is reserved counts until it is released", () => {
  const runners = createRunnerRegistry();
  const one = runner("one", ["explore"], 1);
  runners.add(one);
  const release = runners.reserve(one);
  expect(runners.pick("explore", "ann")).toEqual({ problem: expect.stringContaining("is busy (one)") });
  release();
  expect(runners.pick("explore", "ann")).toEqual({ runner: one });
});
