import type { Subagents } from "../../agents/runners/subagents.ts";
import type { OfferContext } from "../../tool/tool.ts";

/** Lists the agents that a task can start: those that have a runner and that no rule denies. */
export function describeAgents(subagents: Pick<Subagents, "startable">, { judge, principal }: OfferContext): string {
  const agents = subagents
    .startable(principal)
    .filter(([name]) => judge({ permission: "task", patterns: [name] }).action !== "deny");
  if (agents.length === 0)
    return "No agent can be started now, since no agent runner is connected for one that you may use: do the work yourself.";
  return ["Agents:", ...agents.map(([name, description]) => `- ${name}: ${description}`)].join("\n");
}
