import type { SessionCall } from "../agents/runners/runner.ts";
import { createRunnerRegistry } from "../agents/runners/runner-registry.ts";
import { type AgentStreams, createAgentStreams } from "../agents/runners/stream/agent-streams.ts";
import { createSubagents, runOf, type SubagentHost, sessionOfRun } from "../agents/runners/subagents.ts";
import { startedCall } from "../call/call-record.ts";
import { maxLifeMs } from "../call/ends.ts";
import type { Store } from "../call/ports.ts";
import { isTerminal } from "../call/state.ts";
import type { Config } from "../config/config.ts";
import type { Credentials } from "../people/credentials.ts";
import { byName } from "../tool/registry.ts";
import { subagentTools } from "../tools/index.ts";
import type { Replica } from "./replica.ts";

/** Subagents of a replica: the runners that run them, and the streams by which runners connect. */
export interface SubagentParts {
  runners: ReturnType<typeof createRunnerRegistry>;
  streams: AgentStreams;
  /** Ends the streams, and all waiting for the ends of tasks. */
  close(): void;
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
  const closed = new AbortController();
  const ended = async (call: SessionCall) => void (await calls.background.wait(call, maxLifeMs, closed.signal));
  const host: SubagentHost = {
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
    ended,
  };
  const limits = { ...config.limits, resumeMs: config.limits.runnerResumeMs };
  const subagents = createSubagents({ host, runners, limits });
  registry.register(byName(subagentTools({ background: calls.background, subagents })));
  const streams = createAgentStreams({
    runners,
    storeId: () => store.storeId,
    times: { beatMs: config.limits.runnerBeatMs, resumeMs: config.limits.runnerResumeMs },
    checkAgent: (principal, agent) => void sessions.agentFor(principal, agent),
    calls: {
      async find(run, principal) {
        const sessionId = sessionOfRun(run);
        const found = sessionId === "" ? undefined : await sessions.find(sessionId);
        if (found?.session.owner !== principal) return undefined;
        const open = await store.listCalls({ sessionId, open: true, limit: 10_000 });
        return open.find((record) => !isTerminal(record.part) && runOf(startedCall(record)) === run)?.ref;
      },
      ended,
    },
  });
  return {
    runners,
    streams,
    close() {
      closed.abort();
      streams.close();
    },
  };
}
