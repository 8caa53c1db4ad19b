import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { AnswerMethod, type Person } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type ProviderRefresh, ProviderRefreshSchema } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import type { Logger } from "../core/logger.ts";
import type { RecordTable } from "../core/record-table.ts";
import { RequestError } from "../core/request-error.ts";
import { type Credential, endOf, newCredential, newToken } from "./credential.ts";
import type { IssuedCredential } from "./credentials.ts";
import { createIssuerKeys } from "./issuer-keys.ts";
import { signatureAlgorithms } from "./jwt.ts";
import { createOidcClient, type OidcFlow, type PendingFlow, type ProvenIdentity } from "./oidc-client.ts";
import type { People } from "./people.ts";
import { personOf, personWords } from "./person.ts";
import { type OidcProvider, type PersonRules, rolesAt } from "./person-rules.ts";
import type { CredentialTable } from "./ports.ts";

/** Facts about the browser or terminal that signs in. */
interface SignInFields extends Pick<Credential, "label" | "uid" | "isDeviceFlow"> {
  token?: string;
}

/** The end of a flow. */
export interface FinishedFlow extends OidcFlow, SignInFields {
  provider: string;
  /** The query with which the provider sent the person back. */
  response: string;
}

/** A device flow that may have ended. */
type FinishedDeviceFlow = Omit<FinishedFlow, "response" | "redirectUri">;

/** Sign-ins at identity providers. */
export type ProviderSignIns = ReturnType<typeof createProviderSignIns>;

/** Creates the sign-ins at the providers of the configuration. `now` is the time of the store, in ms. */
export function createProviderSignIns({
  rules,
  table,
  people,
  refreshes,
  now,
  log,
  endInvalid,
}: {
  rules: () => PersonRules;
  table: CredentialTable;
  people: People;
  refreshes: RecordTable<ProviderRefresh>;
  now: () => number;
  log: Logger;
  /** Ends the streams of credentials that ended. */
  endInvalid: () => void;
}) {
  // Providers date their tokens by the time of day, not by that of the store.
  const client = createOidcClient(Date.now, log);
  const logoutTokens = createLogoutTokens(Date.now);
  let openCount = 0;
  let isRefreshing = false;

  function find(name: string): OidcProvider {
    const found = rules().oidc.find((provider) => provider.name === name);
    if (found !== undefined) return found;
    throw new RequestError(
      ErrorReason.INVALID_MESSAGE,
      `there is no identity provider "${name}"; the configuration has ${rules().oidc.length} ([oidc.NAME])`,
    );
  }

  /** Bounds the requests to providers that strangers cause. */
  async function bounded<T>(work: () => Promise<T>): Promise<T> {
    if (openCount >= maxOpen)
      throw new RequestError(ErrorReason.QUOTA_EXCEEDED, `${maxOpen} sign-ins are under way; try again`);
    openCount++;
    try {
      return await work();
    } finally {
      openCount--;
    }
  }

  /** Ends sign-ins, and those of devices that were added with them. */
  async function end(ended: readonly Credential[], reason: string): Promise<void> {
    const ids = new Set(ended.map(({ id }) => id));
    const signIns = table.current().filter(({ personId }) => personId !== undefined);
    for (let size = -1; size !== ids.size; ) {
      size = ids.size;
      for (const { id, issuer } of signIns) if (issuer !== undefined && ids.has(issuer)) ids.add(id);
    }
    const valid = signIns.filter(({ id, revoked }) => ids.has(id) && revoked === 0);
    for (const { id } of valid) await table.revoke(id, now());
    endInvalid();
    for (const credential of valid) {
      await refreshes.remove(credential.id);
      const person = people.find(credential.personId ?? "")?.person;
      if (person) await people.noteAbout(actorOf(credential, person), person, reason);
    }
  }

  /**
   * Reads the groups of a person again. Only the replica that put the record off does, since a refresh token may count
   * once; what fails or ends before the new token is stored is tried again, and the provider ends what it no longer knows.
   */
  async function refresh(due: ProviderRefresh): Promise<void> {
    const provider = rules().oidc.find(({ name }) => name === due.provider);
    const taken = await refreshes.update(due.id, (stored) =>
      stored?.due === due.due ? { ...stored, due: now() + retryMs } : undefined,
    );
    const credential = table.current().find(({ id }) => id === due.id);
    const person = people.find(credential?.personId ?? "")?.person;
    if (taken === undefined) return;
    const isOpen = credential !== undefined && endOf(credential) > now();
    const token = provider && unseal(provider, taken);
    if (!isOpen || !person || !provider || token === undefined) return void (await refreshes.remove(due.id));
    const found = await client.refresh(provider, token, person.subject);
    await table.refresh();
    const current = table.current().find(({ id }) => id === due.id);
    if (current === undefined || endOf(current) <= now()) return;
    if (found === "ended") return await end([credential], `${provider.name} gives the sign-in no more tokens`);
    if (found.claims) await people.see({ ...person, name: found.name || person.name }, { claims: found.claims });
    await store(provider, credential, found.refreshToken ?? token);
  }

  /** Stores the right to refresh. A public client has no secret that could protect it. */
  async function store(provider: OidcProvider, { id }: Credential, token: string | undefined): Promise<void> {
    const sealed = token === undefined ? undefined : seal(provider, id, token);
    if (sealed === undefined) return;
    const record = { id, provider: provider.name, sealed, due: now() + refreshMs };
    await refreshes.put(create(ProviderRefreshSchema, record));
  }

  async function refreshAllDue(): Promise<void> {
    const away = new Set<string>();
    for (const due of refreshes.current().filter((each) => each.due <= now())) {
      if (away.has(due.provider)) continue;
      try {
        await refresh(due);
      } catch (error) {
        away.add(due.provider);
        const reason = error instanceof Error ? error.message : String(error);
        log.warn("groups cannot be read from an identity provider; sign-ins stay", { address: due.provider, reason });
      }
    }
  }

  /** Makes a credential of a person that a provider has proven. */
  async function signIn(
    provider: OidcProvider,
    proven: ProvenIdentity,
    { token = newToken(), label, uid, isDeviceFlow = false }: SignInFields,
  ): Promise<IssuedCredential> {
    const { subject, claims = [], sid } = proven;
    const person = personOf(provider.issuer, subject, proven.name);
    await Promise.all([people.refresh(), table.refresh()]);
    const roles = rolesAt(provider, { subject, claims, isDeviceFlow });
    const before = people.find(person.id);
    if (before?.revoked) throw refused(provider, person, []);
    if (roles.length === 0 && rolesAt(provider, { subject, claims }).length > 0) throw tooWeak(provider, person);
    if (roles.length === 0) throw refused(provider, person, claims);
    const created = now();
    const rights = { roles, agents: ["*"], workspaces: ["*"] };
    const made = newCredential(token, rights, { label, created, expires: created + provider.sessionMs });
    const credential: Credential = {
      ...{ ...made, personId: person.id, lineage: [person.id] },
      ...{ ...(uid !== undefined && { uid }), ...(sid !== undefined && { sid }) },
      ...(isDeviceFlow && { isDeviceFlow }),
    };
    await people.see(person, { claims });
    await table.add(credential);
    await store(provider, credential, proven.refreshToken);
    if (before === undefined) await people.noteFirst(actorOf(credential, person), person);
    return { token, credential };
  }

  return {
    names: () => rules().oidc.map(({ name }) => name),
    begin: (provider: string, redirectUri: string) => bounded(() => client.begin(find(provider), redirectUri)),
    beginDevice: (provider: string) => bounded(() => client.beginDevice(find(provider))),

    /** Exchanges the response of a provider for a credential. */
    async finish(flow: FinishedFlow): Promise<IssuedCredential> {
      const provider = find(flow.provider);
      return await signIn(provider, await bounded(() => client.finish(provider, flow)), flow);
    },

    /** Exchanges a device code for a credential, unless the person has not finished. */
    async finishDevice(flow: FinishedDeviceFlow): Promise<IssuedCredential | PendingFlow> {
      const provider = find(flow.provider);
      const proven = await bounded(() => client.finishDevice(provider, flow.flow));
      return "slowerMs" in proven ? proven : await signIn(provider, proven, { ...flow, isDeviceFlow: true });
    },

    /** Ends the sign-ins that a provider's logout token names. */
    async logOut(name: string, token: string): Promise<void> {
      const provider = find(name);
      const { sid, sub, before, forget } = await logoutTokens.verify(provider, token);
      const isOfProvider = ({ personId = "" }: Credential) => people.find(personId)?.person?.issuer === provider.issuer;
      const isNamed = (credential: Credential) =>
        sid !== undefined && credential.sid !== undefined
          ? credential.sid === sid
          : sub !== undefined && credential.personId === personOf(provider.issuer, sub).id;
      try {
        await Promise.all([table.refresh(), people.refresh()]);
        const ended = table.current().filter((each) => each.created <= before && isOfProvider(each) && isNamed(each));
        await end(ended, `${provider.name} logged them out`);
      } catch (error) {
        forget();
        throw error;
      }
    },

    /** Begins to read the groups whose time has come, unless that is under way. */
    async refresh(): Promise<void> {
      await refreshes.refresh();
      if (isRefreshing) return;
      isRefreshing = true;
      void refreshAllDue().finally(() => {
        isRefreshing = false;
      });
    },
  };
}

const actorOf = ({ id }: Credential, person: Person) => ({
  id,
  identity: { person, method: AnswerMethod.SESSION },
});

function tooWeak({ name }: OidcProvider, person: Person): RequestError {
  return new RequestError(
    ErrorReason.ROLE_MISSING,
    `a code that is entered elsewhere gives ${personWords(person)} no role, since others can ask a person to enter theirs; sign in without --device, or set device_flow_may_approve of [oidc.${name}]`,
    { provider: name },
  );
}

function refused({ name }: OidcProvider, person: Person, claims: readonly string[]): RequestError {
  const groups = claims.length === 0 ? "in no group that it names" : `in ${claims.slice(0, 20).join(", ")}`;
  return new RequestError(
    ErrorReason.ROLE_MISSING,
    `${personWords(person)} may not sign in: they are ${groups}, and no [[role_map]] of "${name}" gives them a role, or they were revoked; ask the operator`,
    { provider: name },
  );
}

function keyOf({ name, clientSecret = "" }: OidcProvider): Buffer {
  return Buffer.from(hkdfSync("sha256", clientSecret, "toolgate refresh tokens", name, 32));
}

/** Encrypts a refresh token, so that who reads the store alone cannot use it; undefined for a public client. */
function seal(provider: OidcProvider, id: string, token: string): Uint8Array<ArrayBuffer> | undefined {
  if (provider.clientSecret === undefined) return undefined;
  const iv = randomBytes(12);
  const cipher = createCipheriv("aes-256-gcm", keyOf(provider), iv).setAAD(Buffer.from(id));
  return new Uint8Array(Buffer.concat([iv, cipher.update(token, "utf8"), cipher.final(), cipher.getAuthTag()]));
}

/** Returns undefined after a change of the secret. */
function unseal(provider: OidcProvider, { id, sealed }: ProviderRefresh): string | undefined {
  try {
    const decipher = createDecipheriv("aes-256-gcm", keyOf(provider), sealed.subarray(0, 12));
    decipher.setAAD(Buffer.from(id)).setAuthTag(sealed.subarray(-16));
    return Buffer.concat([decipher.update(sealed.subarray(12, -16)), decipher.final()]).toString();
  } catch {
    return undefined;
  }
}

/** Pause between two refreshes; many providers end a session that nobody refreshed for half an hour. */
const refreshMs = 1_200_000;
const retryMs = 60_000;
const maxOpen = 32;

/** Sign-ins that a provider ended: those of a session, or all of a subject, that began before a time in ms. */
interface EndedSession {
  readonly sid?: string | undefined;
  readonly sub?: string | undefined;
  readonly before: number;
  /** Lets the token be sent again, where its sign-ins could not be ended. */
  forget(): void;
}

/** Creates the check of logout tokens (OpenID Connect Back-Channel Logout 1.0). `now` is the time of day, in ms. */
function createLogoutTokens(now: () => number) {
  const keys = createIssuerKeys();
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
