import { rmSync } from "node:fs";
import { join } from "node:path";
import type { Config } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import { readIfExists } from "../core/read-if-exists.ts";
import { credentialOf, hashOfSecret } from "../people/credential.ts";
import { createCredentials } from "../people/credentials.ts";
import type { ServiceStore } from "./store.ts";

/** Opens the credentials of a service; replaces the approver token of an earlier version by its hash. */
export async function openCredentialParts(config: Config, { calls, credentials: table }: ServiceStore, log: Logger) {
  const adoptedApprover = await adoptApprover(config, table, calls.now(), log);
  return { credentials: createCredentials(table, calls.now, () => config.tokens), adoptedApprover };
}

/**
 * Moves the token of `tokens/approver` into the table as a hash, then deletes the file. A token that the service did not accept,
 * since others are configured, is only deleted.
 */
async function adoptApprover(
  { dataDirectory, callerTokenFile, insecureNoAuth, tokens }: Config,
  table: ServiceStore["credentials"],
  now: number,
  log: Logger,
): Promise<boolean> {
  const file = join(dataDirectory, "tokens", "approver");
  const token = readIfExists(file)?.trim();
  if (token === undefined) return false;
  const isAccepted = callerTokenFile !== undefined || (insecureNoAuth && tokens.length === 0);
  const isNew = !table.current().some(({ sha256 }) => sha256 === hashOfSecret(token));
  if (isAccepted && isNew && token !== "") {
    const rights = { roles: ["approver"] as const, agents: ["*"], workspaces: ["*"] };
    await table.add(credentialOf("approver", token, rights, { label: "tokens/approver", created: now }));
  }
  rmSync(file);
  log.warn(
    isAccepted
      ? "the file of the approver token is deleted; the token stays valid, and only its hash is stored"
      : "the file of an approver token is deleted; configured tokens had replaced it",
    { path: file },
  );
  return isAccepted;
}
