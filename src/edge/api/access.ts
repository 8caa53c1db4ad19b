import { hash, timingSafeEqual } from "node:crypto";
import type { DescMethod } from "@bufbuild/protobuf";
import { createContextKey, type HandlerContext } from "@connectrpc/connect";
import { Health } from "../../../gen/grpc/health/v1/health_pb.ts";
import { ServerReflection } from "../../../gen/grpc/reflection/v1/reflection_pb.ts";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Config } from "../../config/config.ts";
import type { Principal, Role } from "../../core/principal.ts";
import { RequestError } from "../../core/request-error.ts";

/** Lets a request in or refuses it, from its headers alone: nothing of a refused body is read. */
export type AccessGate = (context: HandlerContext) => void;

/** Says who a request comes from, by its authorization header; throws if it cannot be told. */
export type Authenticate = (authorization: string | null) => Principal;

/** Creates it for the configured tokens. */
export function createAuthenticate({
  tokens,
  insecureNoAuth,
}: Pick<Config, "tokens" | "insecureNoAuth">): Authenticate {
  const known = tokens.map(({ id, roles, agents, sha256 }) => ({
    digest: Buffer.from(sha256, "hex"),
    principal: { id, roles: new Set(roles), agents, answersOwn: false },
  }));

  return (authorization) => {
    if (insecureNoAuth) return anonymous;
    const presented = hash("sha256", bearer(authorization), "buffer");
    // Every token is compared, whichever fits, so that time tells nothing.
    const [match] = known.filter(({ digest }) => timingSafeEqual(digest, presented));
    if (match !== undefined) return match.principal;
    throw unauthenticated("the token is not known; check that it is one of this server's");
  };
}

/** Creates the gate: whether one of the roles of who asks may call this rpc. */
export function createAccessGate(authenticate: Authenticate): AccessGate {
  return ({ method, requestHeader, signal, values }) => {
    if (isPublic(method)) return;
    // While the server drains, every request is aborted from its start.
    signal.throwIfAborted();
    const principal = authenticate(requestHeader.get("authorization"));
    checkRole(principal, rolesFor(method), `${method.parent.typeName}/${method.name}`);
    values.set(principalKey, principal);
  };
}

/** Whether somebody may read the metrics: they tell of everybody's calls. */
export function checkReadsMetrics(principal: Principal): void {
  checkRole(principal, overseers, "/metrics");
}

/** Who the request comes from, as the gate found. */
export function principalOf({ values }: Pick<HandlerContext, "values">): Principal {
  const principal = values.get(principalKey);
  if (principal === undefined) throw new Error("a request came past the gate");
  return principal;
}

/** The roles that may call an rpc; none for one that is not in the table. */
export function rolesFor({ parent, localName }: DescMethod): readonly Role[] {
  return rolesByRpc.get(`${parent.typeName}/${localName}`) ?? [];
}

const principalKey = createContextKey<Principal | undefined>(undefined, { description: "principal" });

const anonymous: Principal = {
  id: "anonymous",
  roles: new Set<Role>(["caller", "approver", "watcher", "admin"]),
  agents: ["*"],
  answersOwn: true,
};

const everybody: readonly Role[] = ["caller", "approver", "watcher", "admin"];
/** Dry runs read the workspace on the asker's behalf, which merely watching does not cover. */
const planners: readonly Role[] = ["caller", "approver", "admin"];
const callers: readonly Role[] = ["caller", "admin"];
const approvers: readonly Role[] = ["approver", "admin"];
const overseers: readonly Role[] = ["approver", "watcher", "admin"];

const table: Readonly<Record<string, Readonly<Record<string, readonly Role[]>>>> = {
  [PermissionService.typeName]: {
    respondToPermission: approvers,
    rejectPermissions: approvers,
    listPermissions: everybody,
    watchPermissions: everybody,
    listGrants: overseers,
    revokeGrant: approvers,
    listDecisions: everybody,
    listAudits: overseers,
    explainPermission: everybody,
    listRules: overseers,
  } satisfies Record<keyof typeof PermissionService.method, readonly Role[]>,
  [ToolService.typeName]: {
    listTools: everybody,
    planTool: planners,
    callTool: callers,
    executeTool: callers,
    cancelTool: callers,
    getToolPart: everybody,
    listToolParts: everybody,
    readToolOutput: everybody,
    watchSession: everybody,
    watchMany: everybody,
    getToolStats: overseers,
    getServerInfo: everybody,
  } satisfies Record<keyof typeof ToolService.method, readonly Role[]>,
  [SessionService.typeName]: {
    createSession: callers,
    getSession: everybody,
    listSessions: everybody,
    closeSession: callers,
  } satisfies Record<keyof typeof SessionService.method, readonly Role[]>,
};

const rolesByRpc = new Map(
  Object.entries(table).flatMap(([service, row]) =>
    Object.entries(row).map(([rpc, roles]) => [`${service}/${rpc}`, roles] as const),
  ),
);

function isPublic({ parent }: DescMethod): boolean {
  return parent.typeName === Health.typeName || parent.typeName === ServerReflection.typeName;
}

function bearer(authorization: string | null): string {
  const token = /^Bearer +([^ ]+)$/i.exec(authorization ?? "")?.[1];
  if (token !== undefined) return token;
  throw unauthenticated("a token is needed; send it as the header authorization: Bearer TOKEN");
}

function unauthenticated(message: string): RequestError {
  return new RequestError(ErrorReason.UNAUTHENTICATED, message);
}

function checkRole({ id, roles: own }: Principal, roles: readonly Role[], rpc: string): void {
  if (roles.some((role) => own.has(role))) return;
  throw new RequestError(
    ErrorReason.ROLE_MISSING,
    `the token "${id}" may not call ${rpc}; use one with the role ${roles.join(" or ")}`,
    { rpc, roles: roles.join(",") },
  );
}
