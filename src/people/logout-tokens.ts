import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { RequestError } from "../core/request-error.ts";
import { createIssuerKeys } from "./issuer-keys.ts";
import { signatureAlgorithms } from "./jwt.ts";
import type { OidcProvider } from "./person-rules.ts";

/** Sign-ins that a provider ended: those of a session, or all of a subject, that began before a time in ms. */
export interface EndedSession {
  readonly sid?: string | undefined;
  readonly sub?: string | undefined;
  readonly before: number;
  /** Lets the token be sent again, where its sign-ins could not be ended. */
  forget(): void;
}

/** Creates the check of logout tokens (OpenID Connect Back-Channel Logout 1.0). `now` is the time of day, in ms. */
export function createLogoutTokens(now: () => number) {
  const keys = createIssuerKeys(now);
  /** The tokens that were taken, by issuer and `jti`, until they are too old. */
  const taken = new Map<string, number>();

  return {
    async verify({ issuer, clientId }: OidcProvider, token: string): Promise<EndedSession> {
      const { jwtVerify } = await import("jose");
      const options = {
        ...{ issuer, audience: clientId, algorithms: [...signatureAlgorithms], currentDate: new Date(now()) },
        ...{ clockTolerance: skewMs / 1_000, maxTokenAge: maxAgeMs / 1_000, requiredClaims: ["iat", "jti", "events"] },
      };
      try {
        const { payload, protectedHeader } = await keys.with({ issuer }, (find) => jwtVerify(token, find, options));
        const { sid, sub, jti = "", iat = 0, nonce, events } = payload;
        const { typ = "jwt" } = protectedHeader;
        if (!["logout+jwt", "application/logout+jwt", "jwt"].includes(typ.toLowerCase()))
          throw new Error(`it is of the kind ${typ}`);
        if (!isObject(events) || !isObject(events[logoutEvent])) throw new Error("it has no event of a logout");
        if (nonce !== undefined) throw new Error("it has a nonce, as only ID tokens have");
        if (!(isName(sid) || isName(sub)) || !(isName(sid) || sid === undefined))
          throw new Error("it names no session and no subject");
        for (const [known, time] of taken) if (time <= now()) taken.delete(known);
        const name = `${issuer} ${jti}`;
        if (jti === "" || taken.has(name)) throw new Error("its jti is empty, or it was sent before");
        if (taken.size < maxTaken) taken.set(name, now() + maxAgeMs + 2 * skewMs);
        // A token that another replica took ends no sign-in that began since.
        return { sid, sub, before: iat * 1_000 + skewMs, forget: () => void taken.delete(name) };
      } catch (error) {
        const reason = error instanceof Error ? error.message : String(error);
        throw new RequestError(ErrorReason.INVALID_MESSAGE, `the logout token was refused: ${reason}`);
      }
    },
  };
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;
const isName = (value: unknown): value is string => typeof value === "string" && value !== "" && value.length <= 255;

const logoutEvent = "http://schemas.openid.net/event/backchannel-logout";
const skewMs = 60_000;
const maxAgeMs = 120_000;
const maxTaken = 100_000;
