import { AgentService } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import { CredentialService } from "../../../gen/opencode/tool/v1/credential_service_pb.ts";
import { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { type AgentServiceDomain, agentService } from "./agent-service.ts";
import { type CredentialServiceDomain, credentialService } from "./credential-service.ts";
import type { Failures } from "./failures.ts";
import { type PermissionServiceDomain, permissionService } from "./permission-service.ts";
import { type Rpc, rpcsOf, type ServiceFunctions } from "./rpc.ts";
import { type SessionServiceDomain, sessionService } from "./session-service.ts";
import type { ToolServiceDomain } from "./tool-domain.ts";
import { toolService } from "./tool-service.ts";
import { createWatchMany } from "./watch-many.ts";

/** The services of the contract, as functions. Every door calls these. */
export interface Services {
  tools: ServiceFunctions<typeof ToolService>;
  permissions: ServiceFunctions<typeof PermissionService>;
  sessions: ServiceFunctions<typeof SessionService>;
  credentials: ServiceFunctions<typeof CredentialService>;
  agents: ServiceFunctions<typeof AgentService>;
}

/** Creates the services over the domain. */
export function createServices(
  domain: ToolServiceDomain &
    PermissionServiceDomain &
    SessionServiceDomain &
    CredentialServiceDomain &
    AgentServiceDomain,
  failures: Failures,
): Services {
  const tools = toolService(domain);
  const permissions = permissionService(domain);
  const watchMany = createWatchMany({ ...tools, ...permissions }, failures);
  return {
    tools: { ...tools, watchMany },
    permissions,
    sessions: sessionService(domain),
    credentials: credentialService(domain),
    agents: agentService(domain),
  };
}

/** Lists the rpcs of all services, for doors that serve them alike. */
export function rpcsOfServices({ tools, permissions, sessions, credentials, agents }: Services): Rpc[] {
  return [
    ...rpcsOf(ToolService, tools),
    ...rpcsOf(PermissionService, permissions),
    ...rpcsOf(SessionService, sessions),
    ...rpcsOf(CredentialService, credentials),
    ...rpcsOf(AgentService, agents),
  ];
}
