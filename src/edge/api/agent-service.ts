import type { AgentService, Connector } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import type { Connectors } from "../../agents/connect/connectors.ts";
import type { RunnerRegistry } from "../../agents/runners/runner-registry.ts";
import type { AgentStreams } from "../../agents/runners/stream/agent-streams.ts";
import { readsAll } from "../../call/session-access.ts";
import type { Principal } from "../../core/principal.ts";
import { newestFirstKey, pageByKey } from "./paging.ts";
import type { ServiceFunctions } from "./rpc.ts";
import { approverOf, type SenderDomain } from "./sender.ts";
import type { ToolServiceDomain } from "./tool-domain.ts";

/** Domain that AgentService works on. */
export interface AgentServiceDomain extends SenderDomain {
  connectors: Connectors;
  runners: Pick<RunnerRegistry, "of">;
  streams: Pick<AgentStreams, "connect">;
  about: Pick<ToolServiceDomain["about"], "agentsOf">;
}

/** Returns the functions of AgentService. */
export function agentService(domain: AgentServiceDomain): ServiceFunctions<typeof AgentService> {
  const { connectors, enforcement } = domain;
  const judged = (connector: Connector) => ({ ...connector, enforcement: enforcement.judgeConnector(connector) });
  return {
    async registerConnector(request, context) {
      const { id } = await approverOf(domain, context);
      return { connector: judged(await connectors.register(request, id)) };
    },
    unregisterConnector: async ({ id }) => ({ connector: await connectors.unregister(id) }),
    listAgents(request, { principal }) {
      // The order is that of the configuration.
      const keyOf = (_agent: unknown, index: number) => String(index).padStart(8, "0");
      const { page, nextPageToken } = pageByKey(agentsFor(domain, principal), keyOf, request);
      return { agents: page, nextPageToken };
    },
    async *runAgents(requests, { principal, signal }) {
      for await (const message of domain.streams.connect(principal, requests, signal)) yield { message };
    },
    listConnectors(request) {
      const { page, nextPageToken } = pageByKey(connectors.list(), newestFirstKey, request);
      return { connectors: page.map(judged), nextPageToken };
    },
  };
}

function agentsFor({ about, runners }: Pick<AgentServiceDomain, "about" | "runners">, principal: Principal) {
  const visible = runners.of(readsAll(principal) ? undefined : principal.id);
  return about.agentsOf(principal).map(({ agent, description }) => ({
    ...{ name: agent, description },
    runners: visible
      .filter((runner) => runner.agents().includes(agent))
      .map((runner) => ({
        name: runner.name,
        bypasses: runner.bypasses,
        freeCapacity: Math.max(0, runner.freeCapacity()),
      })),
  }));
}
