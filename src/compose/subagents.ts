import { createRunnerRegistry } from "../agents/runner-registry.ts";
import { type AgentStreams, createAgentStreams } from "../agents/stream/agent-streams.ts";
import { createSubagents, type SubagentHost } from "../agents/subagents.ts";
import type { Store } from "../call/ports.ts";
import type { Config } from "../config/config.ts";
import type { Credentials } from "../credential/credentials.ts";
import { byName } from "../tool/registry.ts";
import { subagentTools } from "../tools/index.ts";
import type { Replica } from "./replica.ts";

/** Subagents of a replica: the runners that run them, and the streams by which runners connect. */
export interface SubagentParts {
  runners: ReturnType<typeof createRunnerRegistry>;
  streams: AgentStreams;
}

/** Composes the subagents of a replica, and registers the tools that start them. */
export function startSubagents({
  config,
  replica: { calls, registry, sessions, agents },
  store: { calls: store },
  credentials,
}: {
  config: Config;
  replica: Replica;
  store: Store;
  credentials: Pick<Credentials, "principalWithId">;
}): SubagentParts {
  const runners = createRunnerRegistry();
  const host: SubagentHost = {
    now: store.now,
    agents: () => new Map([...agents].map((name) => [name, config.policy.agents.get(name)?.description ?? ""])),
    mayActAs(principal, agent) {
      if (config.insecureNoAuth) return true;
      const allowed = credentials.principalWithId(principal)?.agents ?? [];
      return allowed.includes("*") || allowed.includes(agent);
    },
    findSession: sessions.find,
    openChildSession: calls.openChildSession,
    openCalls: calls.background.openCalls,
    cancelCallsOf: calls.cancelCallsOf,
  };
  const subagents = createSubagents({ host, runners, limits: config.limits });
  registry.register(byName(subagentTools({ background: calls.background, subagents })));
  const streams = createAgentStreams({
    runners,
    storeId: () => store.storeId,
    times: { beatMs: config.limits.runnerBeatMs, resumeMs: config.limits.runnerResumeMs },
    checkAgent: (principal, agent) => void sessions.agentFor(principal, agent),
  });
  return { runners, streams };
}
