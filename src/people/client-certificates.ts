import { hash, type X509Certificate } from "node:crypto";
import type { Principal } from "../core/principal.ts";
import { matcher } from "../policy/wildcard.ts";
import { type CredentialRights, newToken } from "./credential.ts";
import { tokenIdentity } from "./person.ts";
import { createProofs, type Proofs } from "./proofs.ts";

/** Client certificates that are accepted in place of a token, and their rights. */
export interface CertificateRule extends CredentialRights {
  /** A pattern of names, each a DNS name or a URI such as `spiffe://corp.example/ns/agents/builder`. */
  readonly san: string;
}

/** Programs that prove themselves with the certificate of their connection. */
export interface CertificateCallers extends Omit<Proofs, "has" | "add"> {
  /** Returns a token that stands for a certificate in this process; undefined if no entry accepts it. */
  tokenOf(certificate: X509Certificate): string | undefined;
}

/**
 * Creates the search by the rules in force; the first rule that a name of the certificate meets decides. TLS has verified the
 * certificate when the connection was made. `now` is the time of day.
 */
export function createCertificateCallers(
  rules: () => readonly CertificateRule[],
  now: () => number,
): CertificateCallers {
  const proofs = createProofs(rules, now);
  const tokens = new Map<string, { token: string; sha256: string }>();

  return {
    ...proofs,
    tokenOf(certificate) {
      const current = rules();
      if (current.length === 0) return undefined;
      const { fingerprint256, validFromDate, validToDate } = certificate;
      const known = tokens.get(fingerprint256);
      if (known !== undefined && proofs.has(known.sha256)) return known.token;
      tokens.delete(fingerprint256);
      // A connection outlives its handshake, and a resumed one has none.
      if (validFromDate.getTime() > now() || validToDate.getTime() <= now()) return undefined;
      const principal = principalFor(current, namesOf(certificate));
      if (principal === undefined) return undefined;
      const token = newToken();
      const sha256 = hash("sha256", token, "hex");
      for (const [other, { sha256: of }] of tokens) if (!proofs.has(of)) tokens.delete(other);
      tokens.set(fingerprint256, { token, sha256 });
      proofs.add(sha256, principal, validToDate.getTime());
      return token;
    },
  };
}

function principalFor(
  rules: readonly CertificateRule[],
  names: readonly string[],
): Omit<Principal, "ended"> | undefined {
  for (const { san, roles, agents, workspaces, worker } of rules) {
    const name = names.find(matcher(san));
    if (name === undefined) continue;
    const id = `cert:${name}`;
    return {
      ...{ id, roles: new Set(roles), agents, workspaces, ...(worker && { worker }) },
      ...{ lineage: [id], identity: tokenIdentity(id), answersOwn: false },
    };
  }
  return undefined;
}

/**
 * Returns the DNS names and the URI of a certificate. Of two URIs one could be anyone's (SPIFFE X.509-SVID, 2), so such a certificate
 * has no name. Node quotes and escapes a name in which another one could hide. No name has an `@`, which those of JWTs have.
 */
function namesOf({ subjectAltName = "" }: X509Certificate): string[] {
  const names = subjectAltName.split(", ");
  const uris = names.filter((name) => name.startsWith("URI:"));
  if (uris.length > 1) return [];
  return names
    .filter((name) => /^(?:URI|DNS):[\w.:/-]+$/.test(name))
    .map((name) => (name.startsWith("DNS:") ? name.toLowerCase() : name).slice(4));
}
