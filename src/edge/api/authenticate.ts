import { hash, timingSafeEqual } from "node:crypto";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Config } from "../../config/config.ts";
import type { Principal, Role } from "../../core/principal.ts";
import { RequestError } from "../../core/request-error.ts";

/** Returns the principal of a request by its authorization header; throws UNAUTHENTICATED if the token is missing or unknown. */
export type Authenticate = (authorization: string | null) => Principal;

/** Creates the authentication by the configured tokens, which a reload replaces. */
export function createAuthenticate(config: Pick<Config, "tokens" | "insecureNoAuth">): Authenticate {
  let of: Config["tokens"] = [];
  let known: ReturnType<typeof knownTokens> = [];

  return (authorization) => {
    if (config.insecureNoAuth) return anonymous;
    if (config.tokens !== of) {
      of = config.tokens;
      known = knownTokens(of);
    }
    const presented = hash("sha256", bearer(authorization), "buffer");
    // Every token is compared, whichever fits, so that time tells nothing.
    const [match] = known.filter(({ digest }) => timingSafeEqual(digest, presented));
    if (match !== undefined) return match.principal;
    throw unauthenticated("the token is not known; check that it is one of this server's");
  };
}

const knownTokens = (tokens: Config["tokens"]) =>
  tokens.map(({ id, roles, agents, sha256 }) => ({
    digest: Buffer.from(sha256, "hex"),
    principal: { id, roles: new Set(roles), agents, answersOwn: false },
  }));

/** Principal of every request while authentication is off. */
const anonymous: Principal = {
  id: "anonymous",
  roles: new Set<Role>(["caller", "approver", "watcher", "admin"]),
  agents: ["*"],
  answersOwn: true,
};

function bearer(authorization: string | null): string {
  const token = /^Bearer +([^ ]+)$/i.exec(authorization ?? "")?.[1];
  if (token !== undefined) return token;
  throw unauthenticated("a token is needed; send it as the header authorization: Bearer TOKEN");
}

function unauthenticated(message: string): RequestError {
  return new RequestError(ErrorReason.UNAUTHENTICATED, message);
}
