import { hash, randomBytes } from "node:crypto";
import type { Configuration, IDToken } from "openid-client";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Logger } from "../core/logger.ts";
import { createRepeatedFailures } from "../core/repeated-failure.ts";
import { RequestError } from "../core/request-error.ts";
import { isSafeAddress } from "../core/safe-address.ts";
import { fetchBounded } from "./bounded-fetch.ts";
import type { OidcProvider } from "./person-rules.ts";

/** Facts that a provider proves about a person. */
export interface ProvenIdentity {
  readonly subject: string;
  readonly name: string;
  /** The groups; undefined if the provider named none this time. */
  readonly claims: readonly string[] | undefined;
  /** The session at the provider. */
  readonly sid?: string | undefined;
  readonly refreshToken?: string | undefined;
}

/** A flow as the client that began it describes it. */
export interface OidcFlow {
  readonly flow: string;
  readonly redirectUri: string;
}

/** A flow that the person has not finished; the provider wants each further pause to be longer by `slowerMs`. */
export interface PendingFlow {
  readonly slowerMs: number;
}

/** Creates the client. `now` is the time of day, in ms. */
export function createOidcClient(now: () => number, log: Logger) {
  const known = new Map<OidcProvider, { configuration: Configuration; time: number }>();
  const refusals = createRepeatedFailures<string>((address, reason, count) =>
    log.warn("the response of an identity provider was refused", { address, reason, count }),
  );

  /** Reads the metadata of a provider; those of the last day serve while it is away. */
  async function configurationOf(provider: OidcProvider): Promise<Configuration> {
    const found = known.get(provider);
    if (found !== undefined && now() < found.time + freshMs) return found.configuration;
    try {
      const configuration = await discover(provider);
      if (known.size >= maxKnown) known.clear();
      known.set(provider, { configuration, time: now() });
      return configuration;
    } catch (error) {
      if (found !== undefined && now() < found.time + maxAgeMs) return found.configuration;
      throw away(provider, error);
    }
  }

  /** Reads what tokens and, where they name no groups, the provider's user info prove. */
  async function identityOf(
    provider: OidcProvider,
    configuration: Configuration,
    tokens: { claims(): IDToken | undefined; access_token: string; refresh_token?: string },
    expected?: string,
  ): Promise<ProvenIdentity> {
    const { fetchUserInfo } = await import("openid-client");
    const proven = tokens.claims();
    const subject = proven?.sub ?? expected ?? "";
    if (subject === "" || subject.length > maxSubjectLength || (expected !== undefined && subject !== expected))
      throw new Error("the tokens are of another subject, or of none");
    const isWanted = proven?.[provider.groupsClaim] === undefined;
    const { userinfo_endpoint: endpoint } = configuration.serverMetadata();
    const info = isWanted && endpoint ? await fetchUserInfo(configuration, tokens.access_token, subject) : {};
    const claims: Record<string, unknown> = { ...info, ...proven };
    const { sid, name, preferred_username: userName, _claim_names: elsewhere } = claims;
    if (isRecord(elsewhere) && provider.groupsClaim in elsewhere)
      log.warn("the provider has too many groups of a person to send them, so none counts; let it send only some", {
        address: provider.issuer,
      });
    return {
      subject,
      name: [name, userName].find((each) => typeof each === "string")?.slice(0, 64) ?? "",
      claims: proven || endpoint ? groupsIn(claims[provider.groupsClaim]) : undefined,
      ...(typeof sid === "string" && { sid }),
      refreshToken: tokens.refresh_token,
    };
  }

  function refused(provider: OidcProvider, error: unknown): RequestError {
    if (isAway(error)) return away(provider, error);
    const reason = reasonOf(error);
    refusals.failed(provider.issuer, reason);
    return new RequestError(
      ErrorReason.UNAUTHENTICATED,
      `the sign-in at "${provider.name}" was refused (${reason}); begin it again`,
      {},
      { cause: error },
    );
  }

  return {
    /** Begins a device flow (RFC 8628): the person enters a code at the provider, on any machine. */
    async beginDevice(provider: OidcProvider) {
      const { initiateDeviceAuthorization } = await import("openid-client");
      const configuration = await configurationOf(provider);
      if (configuration.serverMetadata().device_authorization_endpoint === undefined)
        throw new RequestError(
          ErrorReason.INVALID_MESSAGE,
          `the identity provider "${provider.name}" has no device flow; sign in with a browser on this machine, or with a code`,
        );
      try {
        const begun = await initiateDeviceAuthorization(configuration, { scope: scopeOf(provider) });
        const { verification_uri: url, user_code: userCode, device_code: flow, expires_in, interval = 5 } = begun;
        if (!URL.canParse(url) || !isSafeAddress(url)) throw new Error("its address for codes has no https");
        return {
          url,
          flow,
          userCode,
          intervalMs: Math.ceil(interval * 1_000),
          expiresMs: Math.ceil(expires_in * 1_000),
        };
      } catch (error) {
        throw refused(provider, error);
      }
    },

    /** Asks once for the tokens of a device flow. */
    async finishDevice(provider: OidcProvider, device_code: string): Promise<ProvenIdentity | PendingFlow> {
      const { genericGrantRequest, ResponseBodyError } = await import("openid-client");
      const configuration = await configurationOf(provider);
      try {
        const tokens = await genericGrantRequest(configuration, deviceGrant, { device_code });
        return await identityOf(provider, configuration, tokens);
      } catch (error) {
        const word = error instanceof ResponseBodyError ? error.error : undefined;
        if (word === "authorization_pending") return { slowerMs: 0 };
        if (word === "slow_down") return { slowerMs: 5_000 };
        throw refused(provider, error);
      }
    },

    /** Returns the address at which a person signs in, and the secret of the flow. */
    async begin(provider: OidcProvider, redirectUri: string): Promise<{ url: string; flow: string }> {
      const { buildAuthorizationUrl, calculatePKCECodeChallenge } = await import("openid-client");
      const configuration = await configurationOf(provider);
      const flow = randomBytes(32).toString("base64url");
      const { state, nonce, verifier } = secretsOf(provider, { flow, redirectUri });
      const url = buildAuthorizationUrl(configuration, {
        ...{ redirect_uri: redirectUri, scope: scopeOf(provider), state, nonce },
        ...{ code_challenge: await calculatePKCECodeChallenge(verifier), code_challenge_method: "S256" },
      });
      return { url: url.href, flow };
    },

    /** Verifies the response of a provider to a flow, and exchanges its code. */
    async finish(provider: OidcProvider, flow: OidcFlow & { response: string }): Promise<ProvenIdentity> {
      const { authorizationCodeGrant } = await import("openid-client");
      const configuration = await configurationOf(provider);
      const { state, nonce, verifier } = secretsOf(provider, flow);
      try {
        const address = new URL(`${flow.redirectUri}?${flow.response}`);
        const checks = { expectedState: state, expectedNonce: nonce, pkceCodeVerifier: verifier };
        const tokens = await authorizationCodeGrant(configuration, address, checks);
        return await identityOf(provider, configuration, tokens);
      } catch (error) {
        throw refused(provider, error);
      }
    },

    /** Reads what a provider says about a subject now; `ended` if it gives this sign-in no more tokens. */
    async refresh(provider: OidcProvider, token: string, subject: string): Promise<ProvenIdentity | "ended"> {
      const { refreshTokenGrant, ResponseBodyError } = await import("openid-client");
      const configuration = await configurationOf(provider);
      try {
        const tokens = await refreshTokenGrant(configuration, token);
        return await identityOf(provider, configuration, tokens, subject);
      } catch (error) {
        if (error instanceof ResponseBodyError && error.error === "invalid_grant") return "ended";
        throw error;
      }
    },
  };
}

/**
 * Derives state, nonce and PKCE verifier from the secret of a flow. Nothing has to be stored, so another replica can finish the
 * flow; and who sees all three in an address cannot make a flow that has them.
 */
function secretsOf({ name, issuer, clientId }: OidcProvider, { flow, redirectUri }: OidcFlow) {
  const derive = (use: string) =>
    hash("sha256", JSON.stringify([use, flow, name, issuer, clientId, redirectUri]), "base64url");
  return { state: derive("state"), nonce: derive("nonce"), verifier: derive("verifier") };
}

const scopeOf = ({ scopes }: OidcProvider) => [...new Set(["openid", ...scopes])].join(" ");
const deviceGrant = "urn:ietf:params:oauth:grant-type:device_code";

async function discover({ issuer, clientId, clientSecret }: OidcProvider): Promise<Configuration> {
  const client = await import("openid-client");
  const { ClientSecretBasic, ClientSecretPost, None } = client;
  // `client_secret_basic` is the default of the standard; a provider that does not list it gets the secret in the body.
  const withSecret: import("openid-client").ClientAuth = (server, ...rest) => {
    const { token_endpoint_auth_methods_supported: methods = ["client_secret_basic"] } = server;
    const auth = methods.includes("client_secret_basic") ? ClientSecretBasic : ClientSecretPost;
    auth(clientSecret)(server, ...rest);
  };
  const isPlain = new URL(issuer).protocol === "http:";
  const configuration = await client.discovery(
    new URL(issuer),
    clientId,
    { [client.clockTolerance]: skewS },
    clientSecret === undefined ? None() : withSecret,
    {
      [client.customFetch]: fetchBounded as import("openid-client").CustomFetch,
      // The configuration lets only this machine have an address without TLS.
      execute: [client.enableNonRepudiationChecks, ...(isPlain ? [client.allowInsecureRequests] : [])],
    },
  );
  const { issuer: found } = configuration.serverMetadata();
  if (found !== issuer) throw new Error(`the metadata of ${issuer} names the issuer ${found}`);
  return configuration;
}

/** Reads a claim with groups: a list of texts, or one text. */
function groupsIn(claim: unknown): string[] {
  const groups = Array.isArray(claim) ? claim : [claim];
  return groups.filter((group) => typeof group === "string" && group.length <= maxGroupLength).slice(0, maxGroups);
}

/** Returns true for a provider that does not answer, or answers that it cannot. */
function isAway(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { cause, name } = error;
  if (name === "TimeoutError" || error.message === "fetch failed") return true;
  if (cause instanceof Response) return cause.status >= 500;
  return cause instanceof Error && isAway(cause);
}

function away({ name, issuer }: OidcProvider, cause: unknown): RequestError {
  return new RequestError(
    ErrorReason.PROVIDER_UNAVAILABLE,
    `the identity provider "${name}" at ${issuer} cannot be used now (${reasonOf(cause)}); try again, or sign in with a code`,
    { provider: name },
    { cause },
  );
}

/** Returns the reason of a failure in one line, with the standard's word where the provider sent one. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { cause } = error;
  const word = "error" in error && typeof error.error === "string" ? `: ${error.error}` : "";
  const inner = cause instanceof Error && cause.message !== error.message ? `: ${cause.message}` : "";
  return `${error.message}${word}${inner}`.slice(0, 300);
}

const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;

const skewS = 60;
const freshMs = 600_000;
const maxAgeMs = 86_400_000;
const maxKnown = 100;
const maxGroups = 200;
const maxGroupLength = 128;
const maxSubjectLength = 255;
