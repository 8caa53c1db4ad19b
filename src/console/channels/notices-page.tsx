import { type Client, createClient } from "@connectrpc/connect";
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import {
  type Channel,
  ChannelService,
  type NoticeRecord,
  NoticeState,
} from "../../../gen/opencode/tool/v1/channel_service_pb.ts";
import { channelFacts, channelState, noticeWords } from "../../view/notices.ts";
import { countOf, momentOf } from "../../view/quantities.ts";
import { visibleText } from "../parts/visible-text.ts";
import { useAttempt, useLoaded } from "../shell/load.ts";
import { Empty, ListPage, type PageProps, ProblemText } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";

const [firstSize, maxSize] = [50, 500];

/** The channels, and the last notices that were written for them. An admin sends tests. */
export function NoticesPage({ connection }: PageProps) {
  const service = useMemo(() => createClient(ChannelService, connection.transport), [connection]);
  const pageSize = useSignal(firstSize);
  const list = useLoaded(
    async (signal) => {
      const { channels } = await service.listChannels({}, { signal });
      return { channels, ...(await service.listNotices({ pageSize: pageSize.value }, { signal })) };
    },
    [service, pageSize.value],
  );
  const { channels, notices = [], nextPageToken = "" } = list.value ?? {};
  return (
    <ListPage title="Notices" list={list}>
      {channels?.length === 0 && <Empty title="No channels">`toolgate setup` adds one that reaches phones.</Empty>}
      <ul class="cards">
        {channels?.map((channel) => (
          <ChannelCard
            key={channel.name}
            channel={channel}
            onTest={
              connection.may("admin")
                ? () => service.testChannel({ name: channel.name }).finally(list.reload)
                : undefined
            }
          />
        ))}
      </ul>
      {notices.length > 0 && <h2 id="last-notices">Last notices</h2>}
      <ul class="cards" aria-labelledby="last-notices">
        {notices.map((notice) => (
          <NoticeCard key={notice.permissionId + notice.channel + notice.personId} notice={notice} />
        ))}
      </ul>
      {nextPageToken !== "" && pageSize.value < maxSize && (
        <button type="button" onClick={() => (pageSize.value = maxSize)}>
          Show more
        </button>
      )}
    </ListPage>
  );
}

const stateMarks = { disabled: "beyond", failing: "beyond", working: "look", "not used yet": "" } as const;

function ChannelCard({
  channel,
  onTest,
}: {
  channel: Channel;
  onTest: (() => ReturnType<Client<typeof ChannelService>["testChannel"]>) | undefined;
}) {
  const answer = useSignal("");
  const { failure, attempt } = useAttempt();
  const state = channelState(channel);
  const { name, kind, lastFailed, lastFailure } = channel;
  const send = async () => {
    answer.value = "Sending…";
    const { accepted, answer: words, next } = (await onTest?.()) ?? { accepted: false, answer: "", next: "" };
    answer.value = accepted ? `Accepted: ${words}` : `Not accepted: ${words}. Next: ${next}`;
  };
  return (
    <li class="card">
      <p class="card-head">
        <b class="mono">{visibleText(name)}</b>
        <span class="mark" data-kind={stateMarks[state]}>
          {state}
        </span>
        <small>{kind}</small>
      </p>
      <p class="soft">{channelFacts(channel)}</p>
      {lastFailed > 0 && (
        <p class="soft">
          Last failure {momentOf(lastFailed)}: {visibleText(lastFailure)}
        </p>
      )}
      {onTest && (
        <div class="actions">
          <button type="button" class="quiet" onClick={() => void attempt(send)}>
            Send a test notice
          </button>
          <span role="status">{failure === "" && visibleText(answer.value)}</span>
        </div>
      )}
      <ProblemText text={failure} />
    </li>
  );
}

function NoticeCard({ notice }: { notice: NoticeRecord }) {
  const { channel, state, opened, permissionId, agent, permission, personId, attempts, due, why } = notice;
  const facts = [
    ...(personId === "" ? [] : [`to ${personId}`]),
    ...(attempts === 0 ? [] : [`${countOf(attempts, "failed attempt")}`]),
    ...(due === 0 ? [] : [`next attempt ${momentOf(due)}`]),
    ...(why === "" ? [] : [why]),
  ];
  return (
    <li class="card" data-ended={state === NoticeState.CLOSED}>
      <p class="card-head">
        <b class="mono">{visibleText(channel)}</b>
        <span class="mark" data-kind={state === NoticeState.DEAD ? "beyond" : "look"}>
          {noticeWords[state]}
        </span>
        <span class="time">{momentOf(opened)}</span>
      </p>
      <p>
        <a href={`#${pathOf("requests", permissionId)}`}>
          {agent === "" ? permissionId : visibleText(`${agent} asks: ${permission}`)}
        </a>
      </p>
      {facts.length > 0 && <p class="soft">{visibleText(facts.join(" · "))}</p>}
    </li>
  );
}
