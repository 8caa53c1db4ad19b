import { type ChannelService, NoticeState } from "../../../gen/opencode/tool/v1/channel_service_pb.ts";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { RequestError } from "../../core/request-error.ts";
import type { ChannelDesk, PushDesk, StoredNotice } from "../../reach/ports.ts";
import { newestFirstKey, pageByKey } from "./paging.ts";
import type { ServiceFunctions } from "./rpc.ts";

/** Domain that ChannelService works on. */
export interface ChannelServiceDomain {
  /** Undefined: the configuration has no channel. */
  reach: ChannelDesk | undefined;
  /** Undefined: no channel is of kind `push`. */
  push: PushDesk | undefined;
}

/** Returns the functions of ChannelService. */
export function channelService({ reach, push }: ChannelServiceDomain): ServiceFunctions<typeof ChannelService> {
  return {
    async listChannels() {
      const found = (await reach?.channels()) ?? [];
      return {
        channels: found
          .map(({ counts: { delayMs: _, ...counts }, oldestDue, ...status }) => ({
            ...{ ...status, ...counts, oldest: oldestDue },
          }))
          .toSorted((one, other) => (one.name < other.name ? -1 : 1)),
        pushKey: (await push?.publicKey()) ?? new Uint8Array(),
      };
    },
    async listNotices({ channel, pageSize, pageToken }) {
      const found = ((await reach?.listNotices()) ?? []).filter((each) => channel === "" || each.channel === channel);
      const { page, nextPageToken } = pageByKey(found, keyOf, { pageSize: pageSize || defaultPageSize, pageToken });
      return { notices: await Promise.all(page.map(describe)), nextPageToken };
    },
    async testChannel({ name }, { principal }) {
      const answer = await reach?.test(name, principal.identity?.person.id ?? "");
      if (answer === undefined)
        throw new RequestError(
          ErrorReason.NO_SUCH_CHANNEL,
          `there is no channel "${name}"; add [channel.${name}] to the configuration, or correct the name`,
          { channel: name },
        );
      const { why = "", next = "" } = { next: "", ...answer };
      return { accepted: answer.answer === "accepted", answer: why, next };
    },
    async subscribe(request, { principal }) {
      if (push === undefined) throw noPush();
      if (!(await push.subscribe(principal, request))) return {};
      const { name = "" } = (await reach?.channels())?.find(({ kind }) => kind === "push") ?? {};
      const answer = await reach?.test(name, principal.identity?.person.id ?? "");
      return answer?.answer === "accepted" ? {} : { failure: answer?.why ?? "" };
    },
    async unsubscribe({ endpoint }, { principal }) {
      await push?.unsubscribe(principal, endpoint);
      return {};
    },
  };

  async function describe({ ask, channel, recipient, state, attempts, dueAt, why, opened }: StoredNotice) {
    const { agent = "", permission = "" } = (await reach?.findAsk(ask))?.request ?? {};
    const due = state === "opened" || state === "settled" ? dueAt : 0;
    const facts = { permissionId: ask, channel, personId: recipient, state: states[state], attempts };
    return { ...facts, due, why, opened, agent, permission };
  }
}

function noPush(): RequestError {
  return new RequestError(
    ErrorReason.NO_SUCH_CHANNEL,
    'no channel sends pushes; add one with kind = "push" to the configuration, or run `toolgate setup`',
    { channel: "" },
  );
}

const defaultPageSize = 100;

const keyOf = ({ ask, channel, recipient, opened: created }: StoredNotice) =>
  newestFirstKey({ id: `${ask} ${channel} ${recipient}`, created });

const states = {
  opened: NoticeState.OPENED,
  sent: NoticeState.SENT,
  settled: NoticeState.SETTLED,
  closed: NoticeState.CLOSED,
  dead: NoticeState.DEAD,
} satisfies Record<StoredNotice["state"], NoticeState>;
