import { hash } from "node:crypto";
import type { PushSubscription } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { wordsOf } from "./message.ts";
import type { Channel, ChannelAnswer, ChannelContent, Notice } from "./ports.ts";
import { answerOf, post } from "./post.ts";
import { encryptPush, vapidHeader } from "./push-message.ts";
import type { PushSubscriptions } from "./subscriptions.ts";

/** Maximum size of the text of a message: what push services take, less the other fields. */
const maxTextBytes = 2_500;
/** Time for which a push service keeps an outcome for a browser that is away, in seconds. */
const outcomeSeconds = 3_600;
/** Some push services refuse to hold a message for longer than four weeks. */
const maxSeconds = 28 * 86_400;

/**
 * Creates the channel that sends Web Push messages (RFC 8030) to browsers that subscribed in the console. A message has an id and
 * words, and no credential; the browser makes the link from its own address. The outcome replaces the message, also one that the push
 * service still keeps.
 */
export function createPush({
  subscriptions,
  content,
  contact,
  now,
}: {
  subscriptions: Pick<PushSubscriptions, "of" | "persons" | "keyOf" | "remove">;
  content: ChannelContent;
  /** Address at which push services reach the operator. */
  contact: string;
  /** Time of day, which push services compare with theirs. */
  now: () => number;
}): Channel {
  async function sendTo(browser: PushSubscription, notice: Notice, signal: AbortSignal): Promise<ChannelAnswer> {
    const key = subscriptions.keyOf(browser.keyId);
    if (key === undefined) return { answer: "refused", why: "the key of the subscription is gone" };
    const { endpoint } = browser;
    const sent = now();
    const headers = { ...headersOf(notice, sent), authorization: vapidHeader(endpoint, key, { contact, now: sent }) };
    const body = encryptPush(bytesOf(notice, content), browser);
    const url = new URL(endpoint);
    // Subscriptions are on the list of the operator, which names a port for a place on a private network.
    const result = await post({ url, isNamed: url.port !== "" }, { headers, body, signal });
    if (result.status !== 404 && result.status !== 410) return answerOf(result);
    await subscriptions.remove(browser.id);
    return { answer: "refused", why: `the browser has unsubscribed (${result.status})` };
  }

  return {
    ...{ kind: "push", content },
    people: subscriptions.persons,
    /** Sends to each browser of the person. One that cannot be reached makes all get the message again, in the place of the first. */
    async send(notice, signal) {
      const browsers = subscriptions.of(notice.recipient);
      const sent = await Promise.allSettled(browsers.map((browser) => sendTo(browser, notice, signal)));
      const failed = sent.find((result) => result.status === "rejected");
      const answers = sent.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
      const later = answers.find(({ answer }) => answer === "retry");
      if (later) return later;
      if (failed) throw failed.reason;
      const accepted = answers.find(({ answer }) => answer === "accepted");
      return accepted ?? answers[0] ?? noBrowser;
    },
  };
}

const noBrowser: ChannelAnswer = {
  answer: "refused",
  why: "no browser of this person is subscribed",
  next: "press Notify me in the console on that device",
};

function headersOf(notice: Notice, time: number): Record<string, string> {
  const isOpen = notice.phase === "opened";
  const left = isOpen ? Math.max(0, Math.ceil((notice.request.expires - time) / 1_000)) : outcomeSeconds;
  const seconds = Math.min(left, maxSeconds);
  return {
    "content-type": "application/octet-stream",
    "content-encoding": "aes128gcm",
    ttl: String(seconds),
    urgency: isOpen ? "high" : "normal",
    // A later message takes the place of one that waits.
    topic: hash("sha256", tagOf(notice), "base64url").slice(0, 32),
  };
}

/** Returns the id by which a browser replaces a notification. */
const tagOf = (notice: Notice) => (notice.phase === "test" ? "test" : notice.request.id);

function bytesOf(notice: Notice, content: ChannelContent): Buffer {
  const { title, text } = wordsOf(notice, content);
  let body = text;
  while (Buffer.byteLength(JSON.stringify(body)) > maxTextBytes) body = `${body.slice(0, body.length * 0.8)}…`;
  const risky = notice.phase === "opened" && content !== "none" && notice.request.risks.length > 0;
  return Buffer.from(JSON.stringify({ id: tagOf(notice), phase: notice.phase, title, body, risky }));
}
