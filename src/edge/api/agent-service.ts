import type { AgentService } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import type { Connectors } from "../../connector/connectors.ts";
import type { ServiceFunctions } from "./rpc.ts";

/** Domain that AgentService works on. */
export interface AgentServiceDomain {
  connectors: Connectors;
}

/** Returns the functions of AgentService. */
export function agentService({ connectors }: AgentServiceDomain): ServiceFunctions<typeof AgentService> {
  return {
    registerConnector: async (request, { principal }) => ({
      connector: await connectors.register(request, principal.id),
    }),
    unregisterConnector: async ({ id }) => ({ connector: await connectors.unregister(id) }),
    listConnectors: () => ({ connectors: [...connectors.list()] }),
  };
}
