import { readFileSync } from "node:fs";
import type { Role, WorkerRights } from "../core/principal.ts";
import { isSafeAddress } from "../core/safe-address.ts";
import { isLiteral, matcher } from "../policy/wildcard.ts";
import { checkOutside } from "./paths.ts";
import type { Settings } from "./schema.ts";
import { checkTokenWorkspaces, workerRightsOf } from "./tokens.ts";
import { ConfigError, type EntrySource, entryPlace } from "./toml.ts";

/** Tokens of an issuer that are accepted. */
export interface JwtSettings {
  readonly issuer: string;
  readonly audience: string;
  readonly typ: string;
  readonly subject: string;
  readonly roles: readonly Role[];
  readonly agents: readonly string[];
  readonly workspaces: readonly string[];
  readonly worker?: WorkerRights;
  /** The keys of the file. */
  readonly jwks?: { readonly keys: { kty: string }[] };
}

/** Reads the entries `[[jwt]]`; refuses those that let no one in, or everyone, by their line. */
export function readJwt(jwt: Settings["jwt"], source: EntrySource): JwtSettings[] {
  const { lineOf, workspaces } = source;
  return jwt.map((entry, index) => {
    const at = (key: string) => entryPlace(source, ["jwt", index, key], "[[jwt]]");
    const { issuer, audience, typ, subject, roles, agents, workspaces: roots, jwks_file: keysFile } = entry;
    const problem = subjectProblem(issuer, subject);
    if (problem !== undefined) throw new ConfigError(`${at("subject")} ${problem}`);
    if (!URL.canParse(issuer) || (keysFile === undefined && !isSafeAddress(issuer)))
      throw new ConfigError(
        `${at("issuer")} the keys of ${issuer} could not be trusted: write an address with https://, or name jwks_file`,
      );
    const earlier = jwt.slice(0, index).findIndex((other) => covers(other, entry));
    if (earlier >= 0)
      throw new ConfigError(
        `${at("subject")} lets no one in: the entry in line ${lineOf(["jwt", earlier])} has the same issuer, audience and typ, and covers its subjects; put this one first`,
      );
    if (keysFile !== undefined) checkOutside(keysFile, "the file of keys", workspaces);
    const id = `jwt ${issuer}`;
    checkTokenWorkspaces({ id, roles, workspaces: roots }, workspaces);
    const worker = workerRightsOf({ ...entry, id });
    return {
      ...{ issuer, audience, typ, subject, roles, agents, workspaces: roots, ...(worker && { worker }) },
      ...(keysFile !== undefined && { jwks: readKeys(keysFile, at("jwks_file")) }),
    };
  });
}

/** Client certificates that are accepted in place of a token. */
export type CertificateSettings = Pick<JwtSettings, "roles" | "agents" | "workspaces" | "worker"> & {
  readonly san: string;
};

/** Reads the entries `[[client_cert]]`; refuses those that let no one in by their line. */
export function readClientCerts(
  { client_cert: entries, tls_client_ca }: Pick<Settings, "client_cert" | "tls_client_ca">,
  source: EntrySource,
): CertificateSettings[] {
  const { lineOf, workspaces } = source;
  return entries.map((entry, index) => {
    const { san, roles, agents, workspaces: roots } = entry;
    const at = `${entryPlace(source, ["client_cert", index, "san"], "[[client_cert]]")} lets no one in:`;
    if (tls_client_ca === undefined)
      throw new ConfigError(`${at} no client is asked for a certificate; set tls_client_ca to their authority`);
    if (!/^[\w.:/*-]+$/.test(san))
      throw new ConfigError(`${at} ${JSON.stringify(san)} is no DNS name or URI; write one, such as "ci.corp.example"`);
    const earlier = entries.slice(0, index).findIndex((other) => matcher(other.san)(san));
    if (earlier >= 0)
      throw new ConfigError(
        `${at} the entry in line ${lineOf(["client_cert", earlier])} covers its names; put this one first`,
      );
    const id = `cert:${san}`;
    checkTokenWorkspaces({ id, roles, workspaces: roots }, workspaces);
    const worker = workerRightsOf({ ...entry, id });
    return { ...{ san, roles, agents, workspaces: roots }, ...(worker && { worker }) };
  });
}

/** Issuers whose tokens anyone can get, with subjects of which the beginning says whose they are. */
const publicIssuers: ReadonlySet<string> = new Set([
  "https://token.actions.githubusercontent.com",
  "https://gitlab.com",
  "https://accounts.google.com",
  "https://agent.buildkite.com",
]);

/** Returns true for an issuer at which anyone can have an account. */
export const isPublicIssuer = (issuer: string) => publicIssuers.has(issuer.replace(/\/$/, ""));

function subjectProblem(issuer: string, subject: string): string | undefined {
  if (!isPublicIssuer(issuer) || isLiteral(subject)) return undefined;
  if (/^[^*?:]+:[^*?]+[/:]/.test(subject)) return undefined;
  return `subject ${JSON.stringify(subject)} would let in everyone who has an account at ${issuer}; begin it with whose tokens you mean, such as "repo:acme/shop:*"`;
}

/** Checks if every token of an entry meets an earlier one. */
function covers(earlier: Settings["jwt"][number], entry: Settings["jwt"][number]): boolean {
  const isSame = (["issuer", "audience"] as const).every((key) => earlier[key] === entry[key]);
  const isSameTyp = earlier.typ === entry.typ || earlier.typ === "any";
  return isSame && isSameTyp && matcher(earlier.subject)(entry.subject);
}

function readKeys(file: string, at: string): { keys: { kty: string }[] } {
  let keys: unknown;
  try {
    ({ keys } = JSON.parse(readFileSync(file, "utf8")));
  } catch (cause) {
    throw new ConfigError(`${at} ${file} cannot be read as JSON; write the JWKS of the issuer there`, { cause });
  }
  const usable = Array.isArray(keys) ? keys.filter((key) => ["RSA", "EC", "OKP"].includes(key?.kty)) : [];
  if (usable.length === 0)
    throw new ConfigError(`${at} lets no one in: ${file} has no public key; write the JWKS of the issuer there`);
  return { keys: usable };
}
