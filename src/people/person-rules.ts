import type { Person } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PersonRecord } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { type Role, roleNames } from "../core/principal.ts";

/** An identity provider at which people sign in (OpenID Connect). */
export interface OidcProvider {
  /** Its name in the configuration. */
  readonly name: string;
  readonly issuer: string;
  readonly clientId: string;
  /** Absent for a public client. */
  readonly clientSecret?: string | undefined;
  readonly scopes: readonly string[];
  readonly groupsClaim: string;
  /** Time for which a sign-in is valid. */
  readonly sessionMs: number;
  /** True: a sign-in by device flow gives the roles that decide, too. */
  readonly deviceFlowMayApprove: boolean;
  /** The roles of its groups and subjects. */
  readonly roleMap: readonly RoleMapping[];
}

/** Roles of a group of the provider, or of one of its subjects. */
export interface RoleMapping {
  readonly group?: string | undefined;
  readonly subject?: string | undefined;
  readonly roles: readonly Role[];
}

/** A group of the configuration: named persons, and those of whom a provider says that they are in one of its groups. */
export interface GroupRule {
  readonly name: string;
  readonly members: readonly { readonly issuer: string; readonly subject: string }[];
  readonly claims: readonly { readonly issuer: string; readonly claim: string }[];
}

/** Facts of the configuration about persons; a reload replaces the lists. */
export interface PersonRules {
  readonly oidc: readonly OidcProvider[];
  readonly groups: readonly GroupRule[];
}

/** A person as a provider named them, and how they signed in. */
interface SignedIn {
  readonly subject: string;
  readonly claims: readonly string[];
  readonly isDeviceFlow?: boolean | undefined;
}

/**
 * Returns the roles of a person of a provider: those of all entries that fit, or none. The groups count as the provider named them
 * last, however long ago: while it is away nobody loses a sign-in. A device flow gives no role that decides, unless the configuration
 * says so: a stranger who gets a person to enter a code signs in as that person.
 */
export function rolesAt(provider: OidcProvider, { subject, claims, isDeviceFlow = false }: SignedIn): Role[] {
  const fits = ({ group, subject: named }: RoleMapping) =>
    group === undefined ? named === subject : group === "*" || claims.includes(group);
  const roles = new Set(provider.roleMap.filter(fits).flatMap((mapping) => mapping.roles));
  const mayHave = (role: Role) => !isDeviceFlow || provider.deviceFlowMayApprove || role === "watcher";
  return roleNames.filter((role) => roles.has(role) && mayHave(role));
}

/** Returns the groups of a person at a time, in ms. Those that a provider named more than four hours ago do not count. */
export function groupsOf({ person, claims, claimed }: PersonRecord, { groups }: PersonRules, time: number): string[] {
  const isFresh = time < claimed + maxClaimMs;
  const isMember = ({ members, claims: counted }: GroupRule) =>
    members.some(({ issuer, subject }) => issuer === person?.issuer && subject === person.subject) ||
    (isFresh && counted.some(({ issuer, claim }) => issuer === person?.issuer && claims.includes(claim)));
  return groups.filter(isMember).map(({ name }) => name);
}

/** Returns a person with the groups of now. */
export function withGroups(record: PersonRecord, rules: PersonRules, time: number): Person | undefined {
  return record.person && { ...record.person, groups: groupsOf(record, rules, time) };
}

/** Time for which groups count that a provider named; it is away for longer if they get older. */
export const maxClaimMs = 4 * 3_600_000;
