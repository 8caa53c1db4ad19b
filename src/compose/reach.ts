import type { Config } from "../config/config.ts";
import { ConfigError } from "../config/toml.ts";
import type { Logger } from "../core/logger.ts";
import type { Credentials } from "../people/credentials.ts";
import type { People } from "../people/people.ts";
import { groupsOf, type PersonRules } from "../people/person-rules.ts";
import { createNtfy } from "../reach/ntfy.ts";
import { createNoticeOutbox, type NoticeOutbox } from "../reach/outbox.ts";
import type { Channel } from "../reach/ports.ts";
import { readTarget } from "../reach/post.ts";
import { createPush } from "../reach/push.ts";
import { createSubscriptions, type PushSubscriptions } from "../reach/subscriptions.ts";
import { createWebhook, readWebhookKey } from "../reach/webhook.ts";
import type { ServiceStore } from "./store.ts";

/** Composes the channels and the outbox of a replica; undefined if there is no channel. */
export function createReach(
  { channels, notify, publicUrl = "" }: Pick<Config, "channels" | "notify" | "publicUrl">,
  { store, push, replicaId, people, personRules, log }: ReachParts,
): NoticeOutbox | undefined {
  if (channels.length === 0) return undefined;
  const byName = new Map(channels.map((each) => [each.name, channelOf(each, publicUrl, push)] as const));
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
  push: PushSubscriptions | undefined;
  replicaId: string;
  people: Pick<People, "find">;
  personRules: () => PersonRules;
  log: Logger;
}

/** Composes the browsers that receive pushes; undefined if no channel sends any. */
export function createPushSubscriptions(
  { channels, insecureNoAuth }: Pick<Config, "channels" | "insecureNoAuth">,
  { store, credentials }: { store: ServiceStore; credentials: Pick<Credentials, "principalWithId"> },
): PushSubscriptions | undefined {
  const pushing = channels.filter(({ kind }) => kind === "push");
  if (pushing.length === 0) return undefined;
  const mayApprove = (id: string) => {
    const { roles } = credentials.principalWithId(id) ?? {};
    return roles?.has("approver") || roles?.has("admin") || insecureNoAuth;
  };
  return createSubscriptions({
    ...{ table: store.subscriptions, secrets: store.secrets, now: store.calls.now },
    ...{ hosts: pushing.flatMap(({ pushHosts }) => pushHosts), isApprover: mayApprove },
  });
}

function channelOf(
  { name, kind, url, secrets, to: topic, content }: Config["channels"][number],
  publicUrl: string,
  push: PushSubscriptions | undefined,
): Channel {
  if (kind === "push" && push !== undefined)
    return createPush({ subscriptions: push, content, contact: publicUrl, now: Date.now });
  const target = readTarget(url);
  if (kind === "ntfy") return createNtfy({ target, topic, token: secrets[0] ?? "", content });
  try {
    return createWebhook({ target, keys: secrets.map(readWebhookKey), content, now: Date.now });
  } catch (error) {
    throw new ConfigError(`secret_file of [channel.${name}]: ${error instanceof Error ? error.message : error}`);
  }
}
