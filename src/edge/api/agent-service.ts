import type { AgentService, Connector } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import type { Connectors } from "../../connector/connectors.ts";
import { advisory } from "../../connector/enforcement.ts";
import type { ServiceFunctions } from "./rpc.ts";
import { approverOf, type SenderDomain } from "./sender.ts";

/** Domain that AgentService works on. */
export interface AgentServiceDomain extends SenderDomain {
  connectors: Connectors;
}

/** Returns the functions of AgentService. */
export function agentService(domain: AgentServiceDomain): ServiceFunctions<typeof AgentService> {
  const { connectors, enforcement } = domain;
  const judged = (connector: Connector) => ({ ...connector, enforcement: judge(connector) });
  const judge = ({ uid, enforced }: Connector) => {
    const judgement = enforcement.judge(uid);
    return enforced || judgement.reason !== "" ? judgement : advisory(notVerified);
  };
  return {
    async registerConnector(request, context) {
      const { id } = await approverOf(domain, context);
      return { connector: judged(await connectors.register(request, id)) };
    },
    unregisterConnector: async ({ id }) => ({ connector: await connectors.unregister(id) }),
    listConnectors: () => ({ connectors: connectors.list().map(judged) }),
  };
}

const notVerified =
  "the connector did not verify that the service runs as another user; run `toolgate connect` again on the machine of the service";
