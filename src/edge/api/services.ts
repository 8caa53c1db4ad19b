import { create, type DescService, type MessageInitShape } from "@bufbuild/protobuf";
import { AgentService, type Connector } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import { ChannelService } from "../../../gen/opencode/tool/v1/channel_service_pb.ts";
import { CredentialService } from "../../../gen/opencode/tool/v1/credential_service_pb.ts";
import { OperatorService, StopTargetSchema } from "../../../gen/opencode/tool/v1/operator_service_pb.ts";
import { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import {
  type PersonRecord,
  type PersonRecordSchema,
  PersonService,
} from "../../../gen/opencode/tool/v1/person_service_pb.ts";
import { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { type Source, SourceService } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { WorkerService } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { Connectors } from "../../agents/connect/connectors.ts";
import type { RunnerRegistry } from "../../agents/runners/runner-registry.ts";
import type { AgentStreams } from "../../agents/runners/stream/agent-streams.ts";
import { fleetOrder } from "../../bodies/workers/directory.ts";
import type { Workers } from "../../bodies/workers/workers.ts";
import type { Calls } from "../../call/calls.ts";
import type { StoreMembership } from "../../call/ports.ts";
import { readsAll, type Sessions } from "../../call/sessions.ts";
import type { Principal } from "../../core/principal.ts";
import type { Accounts } from "../../people/accounts.ts";
import { recordOf } from "../../people/credential.ts";
import type { Credentials } from "../../people/credentials.ts";
import type { Delegates } from "../../people/delegates.ts";
import type { Passkeys } from "../../people/passkeys.ts";
import type { People } from "../../people/people.ts";
import { type PersonRules, withGroups } from "../../people/person-rules.ts";
import type { BudgetShare } from "../http/socket-limits.ts";
import { checkRole } from "./access.ts";
import { type ChannelServiceDomain, channelService } from "./channel-service.ts";
import { type CredentialServiceDomain, credentialService } from "./credential-service.ts";
import type { Failures } from "./failures.ts";
import { newestFirstKey, nextPageToken, pageBefore, pageByKey } from "./paging.ts";
import { type PermissionServiceDomain, permissionService } from "./permission-service.ts";
import { approverOf, type EdgeContext, type Rpc, rpcsOf, type SenderDomain, type ServiceFunctions } from "./rpc.ts";
import type { StreamToolsDomain } from "./streamed-call.ts";
import { createStreamTools, createWatchMany, streamMessageBytes } from "./streams.ts";
import { type ToolServiceDomain, toolService } from "./tool-service.ts";

/** The services of the contract. */
export const contract = {
  tools: ToolService,
  permissions: PermissionService,
  sessions: SessionService,
  credentials: CredentialService,
  people: PersonService,
  channels: ChannelService,
  agents: AgentService,
  sources: SourceService,
  operator: OperatorService,
  workers: WorkerService,
};

/** The services of the contract, as functions. Every door calls these. */
export type Services = { [Name in keyof typeof contract]: ServiceFunctions<(typeof contract)[Name]> };

/** Creates the services over the domain. */
export function createServices(
  domain: ToolServiceDomain &
    PermissionServiceDomain &
    SessionServiceDomain &
    CredentialServiceDomain &
    PersonServiceDomain &
    ChannelServiceDomain &
    AgentServiceDomain &
    StreamToolsDomain &
    SourceServiceDomain &
    OperatorServiceDomain &
    WorkerServiceDomain,
  failures: Failures,
  shareOf: (principalId: string) => BudgetShare,
): Services {
  const tools = toolService(domain);
  const permissions = permissionService(domain);
  const watchMany = createWatchMany({ ...tools, ...permissions }, failures);
  return {
    tools: { ...tools, watchMany, streamTools: createStreamTools(domain, failures, shareOf) },
    permissions,
    sessions: sessionService(domain),
    credentials: credentialService(domain),
    people: personService(domain),
    channels: channelService(domain),
    agents: agentService(domain),
    sources: sourceService(domain),
    operator: operatorService(domain),
    workers: workerService(domain),
  };
}

/** Lists the rpcs of all services, for doors that serve them alike. */
export function rpcsOfServices(services: Services): Rpc[] {
  const functions: Readonly<Record<string, unknown>> = services;
  const messageBytes = { streamTools: streamMessageBytes, work: maxWorkerMessageBytes };
  return Object.entries(contract).flatMap(([name, service]) =>
    rpcsOf<DescService>(service, functions[name] as ServiceFunctions<DescService>, { messageBytes }),
  );
}

/** A result of a worker has at most 1 MiB; its message is a little larger. */
const maxWorkerMessageBytes = 1_048_576 + 4_096;

/** Domain that AgentService works on. */
interface AgentServiceDomain extends SenderDomain {
  connectors: Connectors;
  runners: Pick<RunnerRegistry, "of">;
  streams: Pick<AgentStreams, "connect">;
  about: Pick<ToolServiceDomain["about"], "agentsOf">;
}

/** Returns the functions of AgentService. */
function agentService(domain: AgentServiceDomain): ServiceFunctions<typeof AgentService> {
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

/** Domain that OperatorService works on. */
interface OperatorServiceDomain {
  /** Yields the bytes of a backup. */
  backUp(): AsyncIterable<Uint8Array>;
  calls: Pick<Calls, "stop" | "stops" | "resume">;
}

/** Returns the functions of OperatorService. */
function operatorService({ backUp, calls }: OperatorServiceDomain): ServiceFunctions<typeof OperatorService> {
  return {
    async *backup() {
      for await (const data of backUp()) yield { data };
    },
    stop: ({ target = noTarget, reason }, { principal }) => calls.stop(principal, { target, reason }),
    listStops: async () => ({ stops: calls.stops().toSorted((one, other) => one.time - other.time) }),
    resume: async ({ target = noTarget }, { principal }) => {
      const stop = await calls.resume(principal, target);
      return stop ? { stop } : {};
    },
  };
}

/** Never used: a request without a target is refused before. */
const noTarget = create(StopTargetSchema);

/** Domain that SourceService works on. */
interface SourceServiceDomain extends SenderDomain {
  sources: {
    list(): Promise<Source[]>;
    /** Accepts what a source offers, if it is what the digest names. */
    accept(name: string, digest: string, by: string): Promise<Source>;
  };
}

/** Returns the functions of SourceService. */
function sourceService(domain: SourceServiceDomain): ServiceFunctions<typeof SourceService> {
  const { sources } = domain;
  return {
    async listSources(request) {
      const keyOf = ({ kind, workspace, name }: Source) => `${kind} ${workspace} ${name}`;
      const { page, nextPageToken } = pageByKey(await sources.list(), keyOf, request);
      return { sources: page, nextPageToken };
    },
    async acceptSource({ name, digest }, context) {
      const { id } = await approverOf(domain, context);
      return { source: await sources.accept(name, digest, id) };
    },
  };
}

/** Domain that SessionService works on. */
interface SessionServiceDomain {
  sessions: Sessions;
  calls: Calls;
  store: Pick<StoreMembership, "storeIdOf">;
}

/** Returns the functions of SessionService. */
function sessionService({ sessions, calls, store }: SessionServiceDomain): ServiceFunctions<typeof SessionService> {
  return {
    async createSession(request, { principal }) {
      const session = await sessions.create(principal, request);
      return { session, storeId: store.storeIdOf(session.rootSessionId) };
    },
    async getSession({ sessionId }, { principal }) {
      return { session: await sessions.get(principal, sessionId) };
    },
    async listSessions(request, context) {
      const page = pageBefore(request, context);
      const root = request.rootSessionId;
      const found = await sessions.list(context.principal, { ...page, ...(root !== "" && { root }) });
      const ids = found.map(({ id }) => id);
      return { sessions: found, nextPageToken: nextPageToken(ids, page) };
    },
    async closeSession({ sessionId }, { principal }) {
      await calls.closeSession(principal, sessionId);
      return { session: await sessions.get(principal, sessionId) };
    },
  };
}

/** Domain that WorkerService works on. */
interface WorkerServiceDomain {
  workers: Pick<Workers, "connect" | "listAll">;
}

/** Returns the functions of WorkerService. */
function workerService({ workers }: WorkerServiceDomain): ServiceFunctions<typeof WorkerService> {
  return {
    async *work(requests, { principal, signal }) {
      for await (const message of workers.connect(principal, requests, signal)) yield { message };
    },
    async listWorkers(request) {
      const { workers: all, fleets } = await workers.listAll();
      const { page, nextPageToken } = pageByKey(all, fleetOrder, request);
      return { workers: page, nextPageToken, fleets: request.pageToken === "" ? fleets : [] };
    },
  };
}

/** Domain that PersonService works on. */
interface PersonServiceDomain {
  people: People;
  credentials: Credentials;
  accounts: Pick<Accounts, "of" | "createCode" | "unlink">;
  passkeys: Passkeys;
  delegates: Pick<Delegates, "of" | "put" | "remove">;
  personRules: () => PersonRules;
}

/** Returns the functions of PersonService. */
function personService({
  people,
  credentials,
  accounts,
  passkeys,
  delegates,
  personRules,
}: PersonServiceDomain): ServiceFunctions<typeof PersonService> {
  function withDevices(record: PersonRecord): MessageInitShape<typeof PersonRecordSchema> {
    const { id, created, revoked, invitedBy, claims, claimed } = record;
    const person = withGroups(record, personRules(), credentials.now());
    const own = credentials.list().filter(({ personId }) => personId === id);
    const devices = own.toSorted((one, other) => other.created - one.created);
    const delegate = delegates.of(id);
    return {
      ...{ id, created, revoked, invitedBy, claims, claimed },
      accounts: accounts.of(id),
      passkeys: passkeys.of(id),
      devices: devices.map((each) => recordOf(each, credentials.lastSeen(each.id))),
      ...(person && { person }),
      ...(delegate && { delegate }),
    };
  }

  /** Changes a person: approvers change their own, an admin changes any. */
  async function changed(
    { principal }: Pick<EdgeContext, "principal">,
    id: string,
    rpc: string,
    change: (principal: Principal) => Promise<PersonRecord>,
  ) {
    if (principal.identity?.person.id !== id) checkRole(principal, ["admin"], `${rpc} of another person`);
    return { person: withDevices(await change(principal)) };
  }

  return {
    listPeople(request) {
      const { page, nextPageToken } = pageByKey(people.current(), newestFirstKey, request);
      return { people: page.map(withDevices), nextPageToken };
    },
    renamePerson: ({ id, name }, context) =>
      changed(context, id, "RenamePerson", (principal) => people.rename(principal, id, name)),
    revokePerson: ({ id }, context) =>
      changed(context, id, "RevokePerson", (principal) => credentials.revokePerson(principal, id)),
    linkAccount: (_request, { principal }) => accounts.createCode(principal),
    unlinkAccount: ({ personId, id }, context) =>
      changed(context, personId, "UnlinkAccount", (principal) => accounts.unlink(principal, personId, id)),
    beginPasskey: (_request, { principal }) => passkeys.begin(principal),
    async finishPasskey(request, { principal }) {
      return { person: withDevices(await passkeys.finish(principal, request)) };
    },
    removePasskey: ({ personId, id }, context) =>
      changed(context, personId, "RemovePasskey", (principal) => passkeys.remove(principal, personId, id)),
    putDelegate: (request, context) =>
      changed(context, request.personId, "PutDelegate", (principal) => delegates.put(principal, request)),
    removeDelegate: ({ personId }, context) =>
      changed(context, personId, "RemoveDelegate", (principal) => delegates.remove(principal, personId)),
  };
}
