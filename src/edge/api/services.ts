import { AgentService } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import { CredentialService } from "../../../gen/opencode/tool/v1/credential_service_pb.ts";
import { OperatorService } from "../../../gen/opencode/tool/v1/operator_service_pb.ts";
import { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PersonService } from "../../../gen/opencode/tool/v1/person_service_pb.ts";
import { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { SourceService } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { WorkerService } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { ByteBudget } from "../http/byte-budget.ts";
import { type AgentServiceDomain, agentService } from "./agent-service.ts";
import { type CredentialServiceDomain, credentialService } from "./credential-service.ts";
import type { Failures } from "./failures.ts";
import { type OperatorServiceDomain, operatorService } from "./operator-service.ts";
import { type PermissionServiceDomain, permissionService } from "./permission-service.ts";
import { type PersonServiceDomain, personService } from "./person-service.ts";
import { type Rpc, rpcsOf, type ServiceFunctions } from "./rpc.ts";
import { type SessionServiceDomain, sessionService } from "./session-service.ts";
import { type SourceServiceDomain, sourceService } from "./source-service.ts";
import { createStreamTools, streamMessageBytes } from "./stream-tools.ts";
import type { StreamToolsDomain } from "./streamed-call.ts";
import type { ToolServiceDomain } from "./tool-domain.ts";
import { toolService } from "./tool-service.ts";
import { createWatchMany } from "./watch-many.ts";
import { type WorkerServiceDomain, workerService } from "./worker-service.ts";

/** The services of the contract, as functions. Every door calls these. */
export interface Services {
  tools: ServiceFunctions<typeof ToolService>;
  permissions: ServiceFunctions<typeof PermissionService>;
  sessions: ServiceFunctions<typeof SessionService>;
  credentials: ServiceFunctions<typeof CredentialService>;
  people: ServiceFunctions<typeof PersonService>;
  agents: ServiceFunctions<typeof AgentService>;
  sources: ServiceFunctions<typeof SourceService>;
  operator: ServiceFunctions<typeof OperatorService>;
  workers: ServiceFunctions<typeof WorkerService>;
}

/** Creates the services over the domain. */
export function createServices(
  domain: ToolServiceDomain &
    PermissionServiceDomain &
    SessionServiceDomain &
    CredentialServiceDomain &
    PersonServiceDomain &
    AgentServiceDomain &
    StreamToolsDomain &
    SourceServiceDomain &
    OperatorServiceDomain &
    WorkerServiceDomain,
  failures: Failures,
  budget: Pick<ByteBudget, "reserve" | "release">,
): Services {
  const tools = toolService(domain);
  const permissions = permissionService(domain);
  const watchMany = createWatchMany({ ...tools, ...permissions }, failures);
  return {
    tools: { ...tools, watchMany, streamTools: createStreamTools(domain, failures, budget) },
    permissions,
    sessions: sessionService(domain),
    credentials: credentialService(domain),
    people: personService(domain),
    agents: agentService(domain),
    sources: sourceService(domain),
    operator: operatorService(domain),
    workers: workerService(domain),
  };
}

/** Lists the rpcs of all services, for doors that serve them alike. */
export function rpcsOfServices(services: Services): Rpc[] {
  const { tools, permissions, sessions, credentials, people, agents, sources, operator, workers } = services;
  return [
    ...rpcsOf(ToolService, tools, { messageBytes: { streamTools: streamMessageBytes } }),
    ...rpcsOf(PermissionService, permissions),
    ...rpcsOf(SessionService, sessions),
    ...rpcsOf(CredentialService, credentials),
    ...rpcsOf(PersonService, people),
    ...rpcsOf(AgentService, agents),
    ...rpcsOf(SourceService, sources),
    ...rpcsOf(OperatorService, operator),
    ...rpcsOf(WorkerService, workers, { messageBytes: { work: maxWorkerMessageBytes } }),
  ];
}

/** A result of a worker has at most 1 MiB; its message is a little larger. */
const maxWorkerMessageBytes = 1_048_576 + 4_096;
