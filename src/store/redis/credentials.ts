import type { Logger } from "../../core/logger.ts";
import type { Credential } from "../../people/credential.ts";
import type { CredentialTable } from "../../people/ports.ts";
import { credentialSchema } from "../credential-schema.ts";
import { createKeys } from "./keys.ts";
import { openLink } from "./link.ts";
import { createMarkedHash, type TablePlace } from "./marked-hash.ts";
import { databaseOf, parseRedisUrl } from "./url.ts";

/** Opens the table in Redis, where all replicas share it. Records of other replicas are known after `refresh`. */
export async function createRedisCredentials(place: TablePlace): Promise<CredentialTable> {
  const hash = createMarkedHash(place, "credentials");
  let read = "";
  let records: readonly Credential[] = [];

  async function refresh(): Promise<void> {
    const found = await hash.readChanged();
    if (found === undefined || found.join("\n") === read) return;
    // A record that cannot be read is not accepted.
    records = found.flatMap((json) => credentialSchema.safeParse(JSON.parse(json)).data ?? []);
    read = found.join("\n");
  }
  async function write(credential: Credential): Promise<void> {
    await hash.put(credential.id, JSON.stringify(credential));
    await refresh();
  }

  await refresh();
  return {
    current: () => records,
    refresh,
    add: write,
    async revoke(id, time) {
      const found = await hash.get(id);
      if (found === undefined) return undefined;
      const stored = credentialSchema.parse(JSON.parse(found));
      if (stored.revoked === 0) await write({ ...stored, revoked: time });
      else await refresh();
      return records.find((each) => each.id === id);
    },
    async remove(ids) {
      for (const id of ids) await hash.remove(id);
      await refresh();
    },
  };
}

/** Opens only the table of a Redis store, for a command of the operator. */
export async function openRedisCredentials({
  url,
  log,
}: {
  url: string;
  log: Logger;
}): Promise<{ table: CredentialTable; close(): Promise<void> }> {
  const address = parseRedisUrl(url);
  const keys = createKeys("toolgate", databaseOf(address));
  const link = await openLink({ address, keys, defaults: {}, clock: undefined, log });
  return { table: await createRedisCredentials({ link, keys }), close: link.close };
}
