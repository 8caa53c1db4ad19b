import type { Logger } from "../../core/logger.ts";
import type { Credential } from "../../people/credential.ts";
import type { CredentialTable } from "../../people/ports.ts";
import { credentialSchema } from "../credential-schema.ts";
import { createKeys, type Keys } from "./keys.ts";
import { type Link, openLink } from "./link.ts";
import { text, texts } from "./reply.ts";
import { parseRedisUrl } from "./url.ts";

/** Opens the table in Redis, where all replicas share it. Records of other replicas are known after `refresh`. */
export async function createRedisCredentials({
  link,
  keys,
}: {
  link: Pick<Link, "command" | "write">;
  keys: Pick<Keys, "credentials">;
}): Promise<CredentialTable> {
  let read = "";
  let records: readonly Credential[] = [];

  async function refresh(): Promise<void> {
    const found = texts(await link.command("hvals", keys.credentials)).toSorted();
    if (found.join("\n") === read) return;
    // A record that cannot be read is not accepted.
    records = found.flatMap((json) => credentialSchema.safeParse(JSON.parse(json)).data ?? []);
    read = found.join("\n");
  }
  async function write(credential: Credential): Promise<void> {
    await link.write("hset", keys.credentials, credential.id, JSON.stringify(credential));
    await refresh();
  }

  await refresh();
  return {
    current: () => records,
    refresh,
    add: write,
    async revoke(id, time) {
      const found = await link.command("hget", keys.credentials, id);
      if (found === null) return undefined;
      const stored = credentialSchema.parse(JSON.parse(text(found)));
      if (stored.revoked === 0) await write({ ...stored, revoked: time });
      else await refresh();
      return records.find((each) => each.id === id);
    },
    async remove(ids) {
      await link.write("hdel", keys.credentials, ...ids);
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
  const keys = createKeys("toolgate");
  const link = await openLink({ address: parseRedisUrl(url), keys, defaults: {}, clock: undefined, log });
  return { table: await createRedisCredentials({ link, keys }), close: link.close };
}
