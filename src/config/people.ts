import type { Role } from "../core/principal.ts";
import { isSafeAddress } from "../core/safe-address.ts";
import { isPublicIssuer } from "./jwt.ts";
import { checkOutside, readOperatorFile } from "./paths.ts";
import type { Settings } from "./schema.ts";
import type { Token } from "./tokens.ts";
import { ConfigError, type EntrySource, entryPlace } from "./toml.ts";

/** An identity provider at which people sign in, with the roles that it leads to. */
export interface OidcSettings {
  readonly name: string;
  readonly issuer: string;
  readonly clientId: string;
  readonly clientSecret?: string;
  readonly scopes: readonly string[];
  readonly groupsClaim: string;
  readonly sessionMs: number;
  readonly deviceFlowMayApprove: boolean;
  readonly roleMap: readonly { group?: string | undefined; subject?: string | undefined; roles: readonly Role[] }[];
}

/** A group of persons. */
export interface GroupSettings {
  readonly name: string;
  readonly members: readonly { issuer: string; subject: string }[];
  readonly claims: readonly { issuer: string; claim: string }[];
}

type PeopleSettings = Pick<Settings, "oidc" | "role_map" | "group">;

/** Reads identity providers, roles and groups; refuses what lets no one in, or everyone, by its line. */
export function readPeople(settings: PeopleSettings, source: EntrySource) {
  checkRoleMap(settings, source);
  const oidc = Object.entries(settings.oidc).map(([name, provider]) => readProvider(name, provider, settings, source));
  const groups = Object.entries(settings.group).map(([name, { members, claims }]): GroupSettings => {
    const read = (key: "members" | "claims", entry: string) =>
      splitEntry(entry, settings, entryPlace(source, ["group", name, key], `[group.${name}]`));
    if (members.length + claims.length === 0)
      throw new ConfigError(
        `${entryPlace(source, ["group", name], `[group.${name}]`)} has no one in it: name members or claims`,
      );
    return {
      name,
      members: members.map((entry) => read("members", entry)).map(([issuer, subject]) => ({ issuer, subject })),
      claims: claims.map((entry) => read("claims", entry)).map(([issuer, claim]) => ({ issuer, claim })),
    };
  });
  return { oidc, groups };
}

/** Adds the persons to the tokens that name one, in the order of their entries. */
export function namePersons(
  tokens: readonly Token[],
  settings: Pick<Settings, "token" | "oidc">,
  source: EntrySource,
): Token[] {
  return tokens.map((token, index) => {
    const named = settings.token[index]?.person;
    if (named === undefined) return token;
    const [issuer, subject] = splitEntry(named, settings, entryPlace(source, ["token", index, "person"], "[[token]]"));
    return { ...token, person: { issuer, subject } };
  });
}

function readProvider(
  name: string,
  { issuer, client_id, client_secret_file: secretFile, ...provider }: Settings["oidc"][string],
  { oidc, role_map }: PeopleSettings,
  source: EntrySource,
): OidcSettings {
  const at = (key: string) => entryPlace(source, ["oidc", name, key], `[oidc.${name}]`);
  if (!URL.canParse(issuer) || !isSafeAddress(issuer))
    throw new ConfigError(`${at("issuer")} ${issuer} could not be trusted: write the address with https://`);
  const [twin] = Object.entries(oidc).find(([, other]) => other.issuer === issuer) ?? [];
  if (twin !== name)
    throw new ConfigError(`${at("issuer")} is that of [oidc.${twin}]: its persons would be the same; leave one out`);
  const roleMap = role_map.filter((entry) => entry.issuer === name);
  if (roleMap.length === 0)
    throw new ConfigError(
      `${at("issuer")} lets no one in: no [[role_map]] has issuer = "${name}"; add one with a group and roles`,
    );
  if (secretFile !== undefined) checkOutside(secretFile, `client_secret_file of [oidc.${name}]`, source.workspaces);
  const secret = secretFile === undefined ? undefined : readSecret(secretFile, at("client_secret_file"));
  const { scopes, groups_claim: groupsClaim, session, device_flow_may_approve: deviceFlowMayApprove } = provider;
  return {
    ...{ name, issuer, clientId: client_id, scopes, groupsClaim, sessionMs: msOf(session), deviceFlowMayApprove },
    ...(secret !== undefined && { clientSecret: secret }),
    roleMap: roleMap.map(({ group, subject, roles }) => ({ group, subject, roles })),
  };
}

function checkRoleMap({ oidc, role_map }: PeopleSettings, source: EntrySource): void {
  for (const [index, { issuer, group }] of role_map.entries()) {
    const at = (key: string) => entryPlace(source, ["role_map", index, key], "[[role_map]]");
    const provider = oidc[issuer];
    if (provider === undefined)
      throw new ConfigError(
        `${at("issuer")} lets no one in: there is no [oidc.${issuer}]; add it, or correct the name`,
      );
    if (group === "*" && isPublicIssuer(provider.issuer))
      throw new ConfigError(
        `${at("group")} would let in everyone who has an account at ${provider.issuer}; name the subject of each person`,
      );
  }
}

/** Reads `PROVIDER:NAME` of a member or claim; `local` are those who signed in with a code. */
export function splitEntry(entry: string, { oidc }: Pick<PeopleSettings, "oidc">, at: string): [string, string] {
  const [, name = "", rest = ""] = /^([^:]+):(.+)$/.exec(entry) ?? [];
  const issuer = name === "local" ? "local" : oidc[name]?.issuer;
  if (issuer !== undefined && rest !== "") return [issuer, rest];
  const known = ["local", ...Object.keys(oidc)].join(", ");
  throw new ConfigError(
    `${at} has no one in it by ${JSON.stringify(entry)}: write PROVIDER:NAME, with one of ${known}`,
  );
}

function readSecret(file: string, at: string): string {
  const secret = readOperatorFile(file, at).trim();
  if (secret !== "") return secret;
  throw new ConfigError(`${at} lets no one in: ${file} is empty; write the secret of the client there`);
}

const units = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Returns the milliseconds of a time such as `90s`. */
export function msOf(duration: string): number {
  const unit = duration.slice(-1);
  return Number(duration.slice(0, -1)) * (unit === "s" || unit === "m" || unit === "h" ? units[unit] : units.d);
}
