import { create } from "@bufbuild/protobuf";
import { AnswerMethod } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, PermissionResponseSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Config } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import { workspaceRoot } from "../core/paths.ts";
import type { Principal } from "../core/principal.ts";
import type { Accounts } from "../people/accounts.ts";
import { type ChannelAnswerCheck, notShown } from "../reach/channel-answers.ts";
import { readTarget } from "../reach/post.ts";
import { createSlackCall, shownInSlack } from "../reach/slack.ts";
import { type SlackChannel, startSlackSocket } from "../reach/slack-socket.ts";
import type { ServiceStore } from "../store/record-tables.ts";
import type { Replica } from "./replica.ts";

/** Receives the answers that people give in Slack, over a socket for each app; returns how to end that. */
export function startSlack(
  { channels, publicUrl = "" }: Pick<Config, "channels" | "publicUrl">,
  parts: {
    replica: Pick<Replica, "calls" | "permissions">;
    store: ServiceStore;
    check: ChannelAnswerCheck;
    accounts: Accounts;
    log: Logger;
  },
): () => Promise<void> {
  const settings = channels.flatMap(({ slack, ...channel }) => (slack ? [{ ...channel, ...slack }] : []));
  const sockets = [...Map.groupBy(settings, ({ app }) => app).values()].map((ofApp) => {
    const [{ url, appToken } = { url: "", appToken: "" }] = ofApp;
    const target = readTarget(url);
    return startSlackSocket({
      openSocket: createSlackCall(target, appToken),
      ...{ domain: target.url.hostname, log: parts.log },
      channels: ofApp.map((channel) => slackChannel(channel, publicUrl, parts)),
    });
  });
  return async () => void (await Promise.all(sockets.map(({ close }) => close())));
}

type SlackSettings = Config["channels"][number] & Required<Config["channels"][number]>["slack"];

function slackChannel(
  { name, url, to, content, app, team, botToken }: SlackSettings,
  publicUrl: string,
  { replica: { calls, permissions }, store, check, accounts }: Parameters<typeof startSlack>[1],
): SlackChannel {
  const through: Principal = {
    ...{ id: `channel:${name}`, roles: new Set(), agents: ["*"], workspaces: ["*"] },
    lineage: [`channel:${name}`],
    answersOwn: false,
  };
  return {
    call: createSlackCall(readTarget(url), botToken),
    ...{ app, team, to, content, publicUrl },
    answers: {
      personOf: accounts.personOf,
      link: (account, code) => accounts.link(account, code, name),
      find: permissions.find,
      async answer({ request, personId, ...answer }) {
        const { sessionId, id: permissionId } = request;
        const ids = { sessionId, permissionId, onBehalfOf: personId, channel: name };
        const response = create(PermissionResponseSchema, { ...ids, ...answer });
        if (answer.reply === PermissionReply.ONCE && shownInSlack(request) === undefined) throw notShown(response);
        const principal = await check(through, AnswerMethod.CHANNEL, response);
        const workspace = (await store.calls.getSession(sessionId))?.workspace ?? "";
        await calls.answer(principal, workspaceRoot(workspace), response);
      },
    },
  };
}
