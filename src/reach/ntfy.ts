import { wordsOf } from "./message.ts";
import type { Channel, ChannelContent } from "./ports.ts";
import { answerOf, type ProviderTarget, post } from "./post.ts";

/**
 * Creates the channel that publishes to a topic of ntfy. A message has a link only: all readers of the topic see the whole message, so an
 * action that sends an answer would give away the credential. The outcome replaces the message by its sequence id.
 */
export function createNtfy({
  target,
  topic,
  token,
  content,
}: {
  target: ProviderTarget;
  topic: string;
  /** Access token; empty: none. */
  token: string;
  content: ChannelContent;
}): Channel {
  return {
    ...{ kind: "ntfy", content },
    async send(notice, signal) {
      const { title, text } = wordsOf(notice, content);
      const [priority, label] =
        notice.phase === "settled"
          ? [2, "See outcome"]
          : [notice.phase === "opened" && notice.request.risks.length > 0 ? 4 : 3, "Open"];
      const body = JSON.stringify({
        ...{ topic, title, message: text || title, click: notice.url, priority },
        sequence_id: notice.phase === "test" ? notice.id : notice.request.id,
        actions: [{ action: "view", label, url: notice.url }],
      });
      const headers: Record<string, string> = token === "" ? {} : { authorization: `Bearer ${token}` };
      return answerOf(await post(target, { headers, body, signal }));
    },
  };
}
