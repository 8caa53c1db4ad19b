import type { Config } from "../config/config.ts";
import { ConfigError } from "../config/toml.ts";
import type { Logger } from "../core/logger.ts";
import type { People } from "../people/people.ts";
import { groupsOf, type PersonRules } from "../people/person-rules.ts";
import { createNtfy } from "../reach/ntfy.ts";
import { createNoticeOutbox, type NoticeOutbox } from "../reach/outbox.ts";
import type { Channel } from "../reach/ports.ts";
import { readTarget } from "../reach/post.ts";
import { createWebhook, readWebhookKey } from "../reach/webhook.ts";
import type { ServiceStore } from "./store.ts";

/** Composes the channels and the outbox of a replica; undefined if there is no channel. */
export function createReach(
  { channels, notify, publicUrl = "" }: Pick<Config, "channels" | "notify" | "publicUrl">,
  { store, replicaId, people, personRules, log }: ReachParts,
): NoticeOutbox | undefined {
  if (channels.length === 0) return undefined;
  const byName = new Map(channels.map((each) => [each.name, channelOf(each)] as const));
  const { now } = store.calls;
  return createNoticeOutbox({
    ...{ store: store.notices, channels: byName, rules: notify, publicUrl, replicaId, now, log },
    isAddressed(id, { groups, people: named }) {
      const record = people.find(id);
      if (record === undefined || record.revoked > 0) return false;
      const { issuer, subject } = record.person ?? {};
      return (
        groups.length + named.length === 0 ||
        named.some((person) => person.issuer === issuer && person.subject === subject) ||
        groupsOf(record, personRules(), now()).some((group) => groups.includes(group))
      );
    },
  });
}

interface ReachParts {
  store: ServiceStore;
  replicaId: string;
  people: Pick<People, "find">;
  personRules: () => PersonRules;
  log: Logger;
}

function channelOf({ name, kind, url, secrets, to: topic, content }: Config["channels"][number]): Channel {
  const target = readTarget(url);
  if (kind === "ntfy") return createNtfy({ target, topic, token: secrets[0] ?? "", content });
  try {
    return createWebhook({ target, keys: secrets.map(readWebhookKey), content, now: Date.now });
  } catch (error) {
    throw new ConfigError(`secret_file of [channel.${name}]: ${error instanceof Error ? error.message : error}`);
  }
}
