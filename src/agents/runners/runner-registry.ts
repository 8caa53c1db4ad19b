import type { AgentRunner } from "./runner.ts";

/** The agent runners of this replica. */
export type RunnerRegistry = ReturnType<typeof createRunnerRegistry>;

/** Creates a registry without runners. */
export function createRunnerRegistry() {
  let runners: readonly AgentRunner[] = [];
  const reserved = new WeakMap<AgentRunner, number>();
  const count = (runner: AgentRunner, change: number) => reserved.set(runner, (reserved.get(runner) ?? 0) + change);
  const capacityOf = (runner: AgentRunner) => runner.freeCapacity() - (reserved.get(runner) ?? 0);
  const of = (principal?: string) =>
    principal === undefined ? runners : runners.filter((runner) => runner.serves(principal));
  return {
    /** Adds a runner and returns the function that removes it. */
    add(runner: AgentRunner): () => void {
      runners = [...runners, runner];
      return () => {
        runners = runners.filter((other) => other !== runner);
      };
    },
    /** Runners that take runs of sessions of a principal, or all, in the order in which they were added. */
    of,
    /** Returns the runner that holds a run. */
    holderOf: (run: string): AgentRunner | undefined => runners.find(({ surviving }) => surviving?.holds(run)),
    /** Picks the runner of an agent with the most free capacity; `problem` says why there is none and what to do. */
    pick(agent: string, principal: string): { runner: AgentRunner } | { problem: string } {
      const own = of(principal);
      const able = own.filter((runner) => runner.agents().includes(agent));
      if (able.length === 0) return { problem: noRunner(agent, own) };
      const [freest] = able.toSorted((a, b) => capacityOf(b) - capacityOf(a));
      if (freest === undefined || capacityOf(freest) < 1) return { problem: allBusy(agent, able) };
      return { runner: freest };
    },
    /** Counts a run that a runner will start, until the returned function is called. */
    reserve(runner: AgentRunner): () => void {
      count(runner, 1);
      return () => count(runner, -1);
    },
  };
}

function noRunner(agent: string, others: readonly AgentRunner[]): string {
  const connected = [...new Set(others.flatMap((runner) => runner.agents()))].toSorted();
  const what =
    connected.length === 0
      ? `No agent runner is connected, so the agent "${agent}" was not started.`
      : `No agent runner is connected for the agent "${agent}", so it was not started; connected are runners for: ${connected.join(", ")}.`;
  return `${what} Do the work yourself, or ask the operator to connect a runner: a program that calls AgentService.RunAgents with the token that owns this session, at this replica, or a program that speaks ACP, in toolgate.toml: [agent_runner.opencode] with command = "opencode", args = ["acp"], agents = ["${agent}"].`;
}

function allBusy(agent: string, busy: readonly AgentRunner[]): string {
  const names = busy.map(({ name }) => name).join(", ");
  return `Every agent runner for the agent "${agent}" is busy (${names}), so it was not started. Wait until another task has ended, then call again.`;
}
