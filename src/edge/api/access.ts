import { hash } from "node:crypto";
import type { DescMethod } from "@bufbuild/protobuf";
import { AgentService } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import { ChannelService } from "../../../gen/opencode/tool/v1/channel_service_pb.ts";
import { CredentialService } from "../../../gen/opencode/tool/v1/credential_service_pb.ts";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { OperatorService } from "../../../gen/opencode/tool/v1/operator_service_pb.ts";
import { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PersonService } from "../../../gen/opencode/tool/v1/person_service_pb.ts";
import { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { SourceService } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { WorkerService } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { Config } from "../../config/config.ts";
import { type Principal, type Role, roleNames } from "../../core/principal.ts";
import { RequestError } from "../../core/request-error.ts";
import type { Credentials } from "../../people/credentials.ts";
import { anonymousIdentity } from "../../people/person.ts";
import { type BrowserSignIn, browserTokenOf } from "./browser-sign-in.ts";
import { nameOfRpc, type RequestHeaders } from "./rpc.ts";

/** Admits a request by its headers alone, so that the body of a refused request is never read. */
export type AccessGate = (request: { rpc: DescMethod; headers: RequestHeaders; signal: AbortSignal }) => Principal;

/** Creates the gate: the token must be known, and one of its roles must be allowed to call the rpc. */
export function createAccessGate(authenticate: Authenticate): AccessGate {
  return ({ rpc, headers, signal }) => {
    // While the replica drains, every request is aborted from its start.
    signal.throwIfAborted();
    if (isPublicRpc(rpc)) return publicPrincipal;
    const principal = authenticate(headers);
    checkRole(principal, rolesFor(rpc), nameOfRpc(rpc));
    return principal;
  };
}

/** Refuses a principal that may not read the metrics, which cover the calls of all callers. */
export function checkReadsMetrics(principal: Principal): void {
  checkRole(principal, overseers, "/metrics");
}

/** Returns true for an rpc that needs no token: signing in is how a person gets one. */
export function isPublicRpc({ parent, localName }: DescMethod): boolean {
  return parent.typeName === CredentialService.typeName && publicRpcs.has(localName);
}

const publicRpcs: ReadonlySet<string> = new Set(["signIn", "listSignInProviders", "beginSignIn", "finishSignIn"]);

/** Principal of a request to an rpc that needs no token; it has no role. */
export const publicPrincipal: Principal = {
  ...{ id: "", roles: new Set(), agents: [], workspaces: [] },
  lineage: [""],
  answersOwn: false,
};

/** Returns the roles that may call an rpc; none for an rpc that is not in the table. */
export function rolesFor({ parent, localName }: DescMethod): readonly Role[] {
  return rolesByRpc.get(`${parent.typeName}/${localName}`) ?? [];
}

/** Roles that see rules. */
const allRoles: readonly Role[] = ["caller", "approver", "watcher", "admin"];
/** Roles that see tools and read sessions; callers and hosts read their own only. */
const readers: readonly Role[] = [...allRoles, "host"];
/** Roles of agents that run tools themselves. */
const hosts: readonly Role[] = ["host", "admin"];
/** A plan reads the workspace on behalf of the principal, which the role watcher does not cover. */
const planners: readonly Role[] = ["caller", "approver", "admin"];
const callers: readonly Role[] = ["caller", "admin"];
const approvers: readonly Role[] = ["approver", "admin"];
/** A relay answers on behalf of persons and does nothing else. */
const answerers: readonly Role[] = [...approvers, "relay"];
const operators: readonly Role[] = ["admin"];
const overseers: readonly Role[] = ["approver", "watcher", "admin"];

const table: Readonly<Record<string, Readonly<Record<string, readonly Role[]>>>> = {
  [AgentService.typeName]: {
    registerConnector: approvers,
    unregisterConnector: approvers,
    listConnectors: overseers,
    listAgents: readers,
    // A runner makes the calls of its agents with the same token.
    runAgents: callers,
  } satisfies Record<keyof typeof AgentService.method, readonly Role[]>,
  [ChannelService.typeName]: {
    listChannels: approvers,
    listNotices: approvers,
    testChannel: operators,
    subscribe: approvers,
    unsubscribe: approvers,
  } satisfies Record<keyof typeof ChannelService.method, readonly Role[]>,
  [CredentialService.typeName]: {
    signIn: [],
    listSignInProviders: [],
    beginSignIn: [],
    finishSignIn: [],
    createCode: approvers,
    createToken: approvers,
    listCredentials: approvers,
    revokeCredential: approvers,
  } satisfies Record<keyof typeof CredentialService.method, readonly Role[]>,
  [OperatorService.typeName]: {
    backup: operators,
    stop: approvers,
    listStops: overseers,
    resume: approvers,
  } satisfies Record<keyof typeof OperatorService.method, readonly Role[]>,
  [PermissionService.typeName]: {
    respondToPermission: answerers,
    beginStepUp: approvers,
    rejectPermissions: approvers,
    getPermission: readers,
    readBoundFile: overseers,
    listPermissions: readers,
    watchPermissions: readers,
    listGrants: overseers,
    revokeGrant: approvers,
    confirmGrant: approvers,
    listDecisions: readers,
    listAudits: overseers,
    explainPermission: allRoles,
    listRules: overseers,
    simulatePolicy: overseers,
    suggestRules: overseers,
    getAttention: overseers,
  } satisfies Record<keyof typeof PermissionService.method, readonly Role[]>,
  [PersonService.typeName]: {
    listPeople: approvers,
    renamePerson: approvers,
    revokePerson: approvers,
    linkAccount: approvers,
    unlinkAccount: approvers,
    beginPasskey: approvers,
    finishPasskey: approvers,
    removePasskey: approvers,
    putDelegate: approvers,
    removeDelegate: approvers,
  } satisfies Record<keyof typeof PersonService.method, readonly Role[]>,
  [SourceService.typeName]: {
    listSources: overseers,
    acceptSource: approvers,
  } satisfies Record<keyof typeof SourceService.method, readonly Role[]>,
  [WorkerService.typeName]: {
    work: ["worker"],
    listWorkers: overseers,
  } satisfies Record<keyof typeof WorkerService.method, readonly Role[]>,
  [ToolService.typeName]: {
    // A host compares names with those of our MCP server.
    listTools: readers,
    getTool: readers,
    planTool: planners,
    callTool: callers,
    executeTool: callers,
    streamTools: callers,
    beginCall: hosts,
    finishCall: hosts,
    cancelTool: callers,
    getToolPart: readers,
    listToolParts: readers,
    readToolOutput: readers,
    watchSession: readers,
    watchMany: readers,
    getToolStats: overseers,
    getServerInfo: roleNames.filter((role) => role !== "relay"),
  } satisfies Record<keyof typeof ToolService.method, readonly Role[]>,
  [SessionService.typeName]: {
    createSession: callers,
    getSession: readers,
    listSessions: readers,
    closeSession: callers,
  } satisfies Record<keyof typeof SessionService.method, readonly Role[]>,
};

const rolesByRpc = new Map(
  Object.entries(table).flatMap(([service, row]) =>
    Object.entries(row).map(([rpc, roles]) => [`${service}/${rpc}`, roles] as const),
  ),
);

/** Refuses a principal that has none of the roles. */
export function checkRole({ id, roles: held }: Principal, roles: readonly Role[], rpc: string): void {
  if (roles.some((role) => held.has(role))) return;
  throw new RequestError(
    ErrorReason.ROLE_MISSING,
    `the token "${id}" may not call ${rpc}; use one with the role ${roles.join(" or ")}`,
    { rpc, roles: roles.join(",") },
  );
}

/** Returns the principal of a request by its headers; throws UNAUTHENTICATED if the token is missing or unknown. */
export type Authenticate = (headers: RequestHeaders) => Principal;

/** Creates the authentication by the configured tokens and the table of credentials. */
export function createAuthenticate({
  config,
  credentials,
  browser,
}: {
  config: Pick<Config, "insecureNoAuth">;
  credentials: Pick<Credentials, "principalOf">;
  browser: BrowserSignIn;
}): Authenticate {
  return (headers) => {
    if (config.insecureNoAuth) return anonymous;
    const authorization = headers.get("authorization");
    const token = authorization === null ? browserTokenOf(headers, browser) : bearer(authorization);
    if (token === undefined) throw tokenNeeded();
    const principal = credentials.principalOf(hash("sha256", token, "buffer"));
    if (principal !== undefined) return principal;
    throw unauthenticated(
      "the token is not known, was revoked or has expired; sign in again, or check that it is one of this server's",
    );
  };
}

/** Principal of every request while authentication is off. */
const anonymous: Principal = {
  id: "anonymous",
  roles: new Set<Role>(["caller", "approver", "watcher", "admin"]),
  agents: ["*"],
  workspaces: ["*"],
  lineage: ["anonymous"],
  identity: anonymousIdentity,
  answersOwn: true,
};

function bearer(authorization: string): string {
  const token = /^Bearer +([^ ]+)$/i.exec(authorization)?.[1];
  if (token !== undefined) return token;
  throw tokenNeeded();
}

function tokenNeeded(): RequestError {
  return unauthenticated("a token is needed; send it as the header authorization: Bearer TOKEN");
}

function unauthenticated(message: string): RequestError {
  return new RequestError(ErrorReason.UNAUTHENTICATED, message);
}
