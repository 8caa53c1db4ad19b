import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { noSuchPermission } from "../approval/refusals.ts";
import type { Config } from "../config/config.ts";
import { ConfigError } from "../config/toml.ts";
import type { Logger } from "../core/logger.ts";
import type { Credentials } from "../people/credentials.ts";
import type { People } from "../people/people.ts";
import { groupsOf, type PersonRules } from "../people/person-rules.ts";
import { type AuditExport, createAuditExport, createFileReceiver, createHttpReceiver } from "../reach/audit-export.ts";
import { type ChannelAnswerCheck, createChannelAnswerCheck } from "../reach/channel-answers.ts";
import { createNtfy } from "../reach/ntfy.ts";
import { createNoticeOutbox, type NoticeOutbox } from "../reach/outbox.ts";
import type { Channel } from "../reach/ports.ts";
import { readTarget } from "../reach/post.ts";
import { createPush } from "../reach/push.ts";
import { mayApproveAt } from "../reach/routing.ts";
import { createSlack, createSlackCall } from "../reach/slack.ts";
import { createSubscriptions, type PushSubscriptions } from "../reach/subscriptions.ts";
import { createWebhook, readWebhookKey } from "../reach/webhook.ts";
import type { ServiceStore } from "../store/record-tables.ts";
import type { Replica } from "./replica.ts";

/** Composes the channels and the outbox of a replica; undefined if there is no channel. */
export function createReach(
  { channels, notify, publicUrl = "" }: Pick<Config, "channels" | "notify" | "publicUrl">,
  { store, push, replicaId, people, personRules, log }: ReachParts,
): NoticeOutbox | undefined {
  if (channels.length === 0) return undefined;
  const { now, getSession } = store.calls;
  const mayApprove = async (channel: string, request: PermissionRequest) =>
    mayApproveAt(channel, notify, request, (await getSession(request.sessionId))?.workspace ?? "");
  const byName = new Map(channels.map((each) => [each.name, channelOf(each, publicUrl, push, mayApprove)] as const));
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

/** Composes the export of the audit; undefined if it has no receiver. */
export function createExport(
  { auditExports }: Pick<Config, "auditExports">,
  { store, replicaId, log }: Pick<ReachParts, "store" | "replicaId" | "log">,
): AuditExport | undefined {
  if (auditExports.length === 0) return undefined;
  const receivers = auditExports.map((each) => {
    const isFile = "file" in each;
    return [
      each.name,
      isFile ? createFileReceiver(each.file) : createHttpReceiver(readTarget(each.url), each.token),
    ] as const;
  });
  return createAuditExport({
    ...{ store: store.exports, listDecisions: store.permissions.listDecisions, receivers: new Map(receivers) },
    ...{ replicaId, now: store.calls.now, log },
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

/** Composes the check of answers that people give at channels. */
export function answerCheck(
  { notify: rules }: Pick<Config, "notify">,
  {
    replica: { permissions },
    store,
    credentials,
  }: { replica: Pick<Replica, "permissions">; store: ServiceStore; credentials: Credentials },
): ChannelAnswerCheck {
  return createChannelAnswerCheck({
    rules,
    answererOf: credentials.answererOf,
    async find({ sessionId, permissionId }) {
      const [ask, session] = await Promise.all([permissions.find(permissionId), store.calls.getSession(sessionId)]);
      if (!ask || !session || ask.call.sessionId !== sessionId) throw noSuchPermission({ sessionId, permissionId });
      return { request: ask.request, workspace: session.workspace };
    },
  });
}

function channelOf(
  { name, kind, url, secrets, to, content, slack }: Config["channels"][number],
  publicUrl: string,
  push: PushSubscriptions | undefined,
  mayApprove: (channel: string, request: PermissionRequest) => Promise<boolean>,
): Channel {
  if (kind === "push" && push !== undefined)
    return createPush({ subscriptions: push, content, contact: publicUrl, now: Date.now });
  const target = readTarget(url);
  if (slack) {
    const call = createSlackCall(target, slack.botToken);
    return createSlack({ call, to, content, mayApprove: (request) => mayApprove(name, request) });
  }
  if (kind === "ntfy") return createNtfy({ target, topic: to, token: secrets[0] ?? "", content });
  try {
    return createWebhook({ target, keys: secrets.map(readWebhookKey), content, now: Date.now });
  } catch (error) {
    throw new ConfigError(`secret_file of [channel.${name}]: ${error instanceof Error ? error.message : error}`);
  }
}
