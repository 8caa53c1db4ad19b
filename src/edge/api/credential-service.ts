import type { CredentialService } from "../../../gen/opencode/tool/v1/credential_service_pb.ts";
import type { StoreMembership } from "../../call/ports.ts";
import { type Principal, type Role, roleNames } from "../../core/principal.ts";
import { workerRightsProblem } from "../../core/worker-rights.ts";
import { actingRoles, type CredentialRights, recordOf, workerRights } from "../../people/credential.ts";
import type { Credentials } from "../../people/credentials.ts";

import type { ProviderSignIns } from "../../people/provider-sign-ins.ts";
import { checkRole } from "./access.ts";
import { callbackOf, checkOwnPage } from "./browser-sign-in.ts";
import { newestFirstKey, pageByKey } from "./paging.ts";
import { invalidField } from "./request-failure.ts";
import { approverOf, type RequestHeaders, type SenderDomain, type ServiceFunctions } from "./rpc.ts";

/** Domain that CredentialService works on. */
export interface CredentialServiceDomain extends SenderDomain {
  credentials: Credentials;
  signIns: ProviderSignIns;
  store: Pick<StoreMembership, "storeId">;
}

/** Returns the functions of CredentialService. */
export function credentialService(domain: CredentialServiceDomain): ServiceFunctions<typeof CredentialService> {
  const { credentials, signIns, store } = domain;
  return {
    async signIn({ code, label, name }, { peer }) {
      const { uid } = await peer();
      const { token, credential } = await credentials.signIn({ code, label: label || "terminal", name, uid });
      return { token, credential: recordOf(credential), storeId: store.storeId };
    },
    listSignInProviders: () => ({ names: signIns.names() }),
    async beginSignIn({ provider, redirectUri }, { headers }) {
      if (isDeviceFlow(redirectUri, headers)) return await signIns.beginDevice(provider);
      checkRedirect(provider, redirectUri, headers);
      return await signIns.begin(provider, redirectUri);
    },
    async finishSignIn({ provider, redirectUri, flow, response, label }, { peer, headers }) {
      const isDevice = isDeviceFlow(redirectUri, headers);
      if (!isDevice) checkRedirect(provider, redirectUri, headers);
      const { uid } = await peer();
      const end = { provider, flow, label: label || "terminal", uid };
      const finished = await (isDevice ? signIns.finishDevice(end) : signIns.finish({ ...end, redirectUri, response }));
      if ("slowerMs" in finished) return { isPending: true, slowerMs: finished.slowerMs };
      const { token, credential } = finished;
      return { token, credential: recordOf(credential), storeId: store.storeId };
    },
    async createCode({ newPerson }, context) {
      const principal = await approverOf(domain, context);
      if (newPerson === undefined) return credentials.createCode(principal);
      checkRole(principal, ["admin"], "CreateCode for a new person");
      return await credentials.invite(principal, newPerson);
    },
    async createToken({ roles: named, agents, workspaces, label, expires, worker }, context) {
      const principal = await approverOf(domain, context);
      const roles = roleNames.filter((role) => named.includes(role));
      checkMayGive(principal, roles, "CreateToken");
      checkWorkspacesFit(roles, workspaces);
      const rights = {
        roles,
        agents: narrowed("agents", agents, principal.agents),
        workspaces: narrowed("workspaces", workspaces, principal.workspaces),
        ...(worker && { worker: workerRights(worker) }),
      };
      checkWorkerRights(rights);
      const { token, credential } = await credentials.create(principal, rights, {
        label: label || roles.join("-"),
        expires,
      });
      return { token, credential: recordOf(credential) };
    },
    listCredentials(request) {
      const { page, nextPageToken } = pageByKey(credentials.list(), newestFirstKey, request);
      return { credentials: page.map((each) => recordOf(each, credentials.lastSeen(each.id))), nextPageToken };
    },
    async revokeCredential({ id }, { principal }) {
      const found = credentials.list().find((credential) => credential.id === id);
      if (found?.roles.includes("admin")) checkRole(principal, ["admin"], "RevokeCredential of an admin");
      return { credential: recordOf(await credentials.revoke(id)) };
    },
  };
}

/** Recognizes a flow that sends no one back. No page begins one: its browser could sign in itself. */
const isDeviceFlow = (redirectUri: string, headers: RequestHeaders) =>
  redirectUri === "" && headers.get("origin") === null;

/** Refuses an address to which a provider must not send a person: neither the page that asks, nor a program on the person's machine. */
function checkRedirect(provider: string, redirectUri: string, headers: RequestHeaders): void {
  if (/^http:\/\/(127\.0\.0\.1|\[::1\]):\d{1,5}\/$/.test(redirectUri)) return;
  checkOwnPage(headers);
  if (redirectUri === callbackOf(headers, provider)) return;
  throw invalidField(
    "redirect_uri",
    `redirect_uri ${JSON.stringify(redirectUri)} is neither the callback of this page nor http://127.0.0.1:PORT/; use one of them`,
  );
}

/** Approvers give the roles of programs; an admin gives any role. */
function checkMayGive(principal: Principal, roles: readonly Role[], rpc: string): void {
  const others = roles.filter((role) => !actingRoles.has(role));
  checkRole(principal, others.length === 0 ? ["approver", "admin"] : ["admin"], `${rpc} for ${roles.join(", ")}`);
}

function checkWorkspacesFit(roles: readonly Role[], workspaces: readonly string[]): void {
  const unlimited = roles.filter((role) => !actingRoles.has(role));
  if (unlimited.length === 0 || workspaces.length === 0 || workspaces.includes("*")) return;
  throw invalidField(
    "workspaces",
    `workspaces do not limit the role ${unlimited.join(", ")}, which reads all sessions; leave workspaces out, or give only the roles ${[...actingRoles].join(", ")}`,
  );
}

function checkWorkerRights(rights: CredentialRights): void {
  const problem = workerRightsProblem(rights);
  if (problem !== undefined)
    throw invalidField(problem.field === "tools" ? "worker.tools" : problem.field, problem.message);
}

/** Returns the wanted names if the creator has them all, or the creator's own if none are wanted. */
function narrowed(field: string, wanted: readonly string[], own: readonly string[]): readonly string[] {
  if (wanted.length === 0) return own;
  const beyond = own.includes("*") ? undefined : wanted.find((name) => !own.includes(name));
  if (beyond === undefined) return wanted;
  throw invalidField(
    field,
    `${field}: "${beyond}" is not among those of your own credential (${own.join(", ")}); name only these`,
  );
}
