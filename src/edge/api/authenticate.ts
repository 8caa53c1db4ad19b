import { hash } from "node:crypto";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Config } from "../../config/config.ts";
import type { Principal, Role } from "../../core/principal.ts";
import { RequestError } from "../../core/request-error.ts";
import type { Credentials } from "../../people/credentials.ts";
import { anonymousIdentity } from "../../people/person.ts";
import { type BrowserSignIn, browserTokenOf } from "./browser-sign-in.ts";
import type { RequestHeaders } from "./edge-context.ts";

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
