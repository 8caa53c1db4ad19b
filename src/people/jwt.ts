import { hash } from "node:crypto";
import type { JSONWebKeySet, JWTHeaderParameters, JWTPayload } from "jose";
import type { Logger } from "../core/logger.ts";
import type { Principal } from "../core/principal.ts";
import { createRepeatedFailures } from "../core/repeated-failure.ts";
import { matcher } from "../policy/wildcard.ts";
import type { CredentialRights } from "./credential.ts";
import { createIssuerKeys } from "./issuer-keys.ts";
import { personOf, tokenIdentity } from "./person.ts";
import { createProofs, type Proofs } from "./proofs.ts";

/** The tokens of an issuer that are accepted, and their rights. */
export interface JwtRule extends CredentialRights {
  readonly issuer: string;
  readonly audience: string;
  /** The header `typ`; `any` for issuers that write none. */
  readonly typ: string;
  /** A pattern of subjects. */
  readonly subject: string;
  /** The issuer's keys; absent: those that it publishes. */
  readonly jwks?: JSONWebKeySet | undefined;
}

/** Callers that prove themselves with a token of an issuer. */
export interface JwtCallers extends Omit<Proofs, "has" | "add"> {
  /** Verifies a token that is not known yet; undefined if there is nothing to wait for. */
  admit(token: string): Promise<void> | undefined;
}

/** Creates the verification by the rules in force; the first rule that a token meets decides. `now` is the time of day. */
export function createJwtCallers({
  rules,
  now,
  log,
}: {
  rules: () => readonly JwtRule[];
  now: () => number;
  log: Logger;
}): JwtCallers {
  const proofs = createProofs(rules, now);
  const keys = createIssuerKeys();
  const refusals = createRepeatedFailures<unknown>((address, error, count) => {
    const reason = (error instanceof Error ? error.message : String(error)).slice(0, 500);
    log.warn("a JWT was refused; compare it with the [[jwt]] of its issuer", { address, reason, count });
  });

  async function verify(token: string, sha256: string): Promise<void> {
    const { decodeJwt } = await keys.load();
    const { iss } = decodeJwt(token);
    const current = rules();
    const candidates = current.filter(({ issuer }) => issuer === iss);
    for (const [index, rule] of candidates.entries()) {
      try {
        const { principal, expires } = await verifiedBy(rule, token);
        if (rules() === current) proofs.add(sha256, principal, expires);
        return;
      } catch (error) {
        if (index === candidates.length - 1) refusals.failed(rule.issuer, error);
      }
    }
  }

  async function verifiedBy(rule: JwtRule, token: string) {
    const { issuer, audience, typ } = rule;
    const options = {
      ...{
        issuer,
        audience,
        algorithms: [...signatureAlgorithms],
        clockTolerance: skewS,
        currentDate: new Date(now()),
      },
      ...(typ !== "any" && { typ }),
      requiredClaims: ["sub", "exp"],
    };
    const { jwtVerify } = await keys.load();
    const { payload, protectedHeader } = await keys.with(rule, (find) => jwtVerify(token, find, options));
    // Another spelling of the same bytes is another token.
    const signature = token.slice(token.lastIndexOf(".") + 1);
    if (Buffer.from(signature, "base64url").toString("base64url") !== signature)
      throw new Error("its signature has another spelling than its issuer gave it");
    const problem = problemOf(payload, protectedHeader, rule, now() / 1_000);
    if (problem !== undefined) throw new Error(problem);
    return { principal: principalFor(rule, payload), expires: (payload.exp ?? 0) * 1_000 };
  }

  return {
    ...proofs,
    admit(token) {
      if (rules().length === 0 || token.length > maxTokenLength || !hasFormOfJwt.test(token)) return undefined;
      const sha256 = hash("sha256", token, "hex");
      if (proofs.has(sha256)) return undefined;
      return verify(token, sha256).catch(() => undefined);
    },
  };
}

/** Returns what is wrong with a token whose signature, issuer, audience and time are right. */
function problemOf(
  payload: JWTPayload,
  { typ = "jwt" }: JWTHeaderParameters,
  rule: JwtRule,
  nowS: number,
): string | undefined {
  const { sub = "", exp = 0, iat, cnf } = payload;
  if (exp <= nowS) return "it has expired";
  if (iat !== undefined && iat > nowS + skewS) return "it was issued in the future";
  if (cnf !== undefined) return "it is bound to a key (cnf), which is not supported";
  if (rule.typ === "any" && !["jwt", "at+jwt", "application/at+jwt"].includes(typ.toLowerCase()))
    return `it is of the kind ${typ}`;
  if (rule.typ === "any" && ["nonce", "at_hash", "c_hash"].some((claim) => claim in payload))
    return "it is an ID token";
  if (sub === "" || sub.length > maxSubjectLength) return "its subject is empty or too long";
  if (!matcher(rule.subject)(sub)) return `its subject ${JSON.stringify(sub)} is not in subject`;
  return undefined;
}

/**
 * Builds the principal of a token. The subject owns its sessions; with `act` the agent that acts for it does, apart from the agents of
 * other persons. Its person answers nothing, so it is shown only.
 */
function principalFor(
  { issuer, roles, agents, workspaces, worker }: JwtRule,
  payload: JWTPayload,
): Omit<Principal, "ended"> {
  const { sub = "", name, client_id: client } = payload;
  const agent = actorOf(payload);
  const id = `${sub}@${issuer.replace(/^https:\/\//, "")}${agent === undefined ? "" : ` by ${agent}`}`;
  const person = personOf(issuer, sub, typeof name === "string" ? name.slice(0, 64) : "");
  const isPerson = agent !== undefined || sub !== client;
  return {
    ...{ id, roles: new Set(roles), agents, workspaces, ...(worker && { worker }) },
    lineage: [id],
    identity: { ...tokenIdentity(id), person },
    ...(isPerson && { behind: person }),
    answersOwn: false,
  };
}

/** Returns the innermost actor of a delegated token (RFC 8693): the agent that acts for the subject. */
function actorOf(payload: JWTPayload): string | undefined {
  let actor: unknown = payload.act;
  let found: string | undefined;
  for (let depth = 0; depth < maxActors && typeof actor === "object" && actor !== null; depth++) {
    if ("sub" in actor && typeof actor.sub === "string") found = actor.sub.slice(0, maxSubjectLength);
    actor = "act" in actor ? actor.act : undefined;
  }
  return found;
}

/** Signatures with the issuer's private key (RFC 7518, 3.1). With a shared secret (HS256) the verifier could forge. */
export const signatureAlgorithms: readonly string[] = [
  ...["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
  ...["ES256", "ES384", "ES512", "EdDSA", "Ed25519"],
];
const hasFormOfJwt = /^ey[\w-]+\.[\w-]+\.[\w-]+$/;
const skewS = 60;
const maxTokenLength = 8_192;
const maxSubjectLength = 255;
const maxActors = 8;
