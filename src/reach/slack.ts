import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { riskWords } from "../core/risk-words.ts";
import { shownWhole, wordsOf } from "./message.ts";
import type { Channel, ChannelAnswer, ChannelContent, Notice } from "./ports.ts";
import { type ProviderTarget, post } from "./post.ts";

/** Answer of a method of Slack's Web API, as far as it is read. */
export interface SlackAnswer {
  readonly ok: boolean;
  readonly error: string;
  readonly channel: string;
  readonly ts: string;
  /** Address of a socket. */
  readonly url: string;
}

/** Calls a method of Slack's Web API. Throws if it does not answer; a status other than 200 is an answer that is not ok. */
export type SlackCall = (method: string, body: object, signal: AbortSignal) => Promise<SlackAnswer & Waits>;

/** How long Slack asks to wait. */
interface Waits {
  readonly status: number;
  readonly retryAfterMs?: number;
}

/** Creates the calls with a token, which is sent in a header only. */
export function createSlackCall({ url, isNamed }: ProviderTarget, token: string): SlackCall {
  return async (method, body, signal) => {
    const target = { url: new URL(method, url.href.replace(/\/*$/, "/")), isNamed };
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/json; charset=utf-8" };
    const answer = await post(target, { headers, body: JSON.stringify(body), signal, maxAnswerBytes: 65_536 });
    const { status, retryAfterMs } = answer;
    const waits = { status, ...(retryAfterMs !== undefined && { retryAfterMs }) };
    const read = status === 200 ? slackObject(answer.text ?? "") : {};
    const text = (name: string) => (typeof read[name] === "string" ? read[name] : "");
    const error = text("error") || (status === 200 ? "" : `http_${status}`);
    return { ok: read.ok === true, error, channel: text("channel"), ts: text("ts"), url: text("url"), ...waits };
  };
}

/** Reads a JSON object of another program; anything else is empty. */
export function slackObject(text: string): Readonly<Record<string, unknown>> {
  try {
    const read: unknown = JSON.parse(text);
    return typeof read === "object" && read !== null ? { ...read } : {};
  } catch {
    return {};
  }
}

/**
 * Creates the channel that posts a message with buttons, and takes them away once the request is settled. `to` is the id of the channel.
 */
export function createSlack({
  call,
  to,
  content,
  mayApprove,
}: {
  call: SlackCall;
  to: string;
  content: ChannelContent;
  /** True if a rule lets people approve a request there. */
  mayApprove: (request: PermissionRequest) => Promise<boolean>;
}): Channel {
  return {
    ...{ kind: "slack", content },
    async send(notice, signal) {
      if (notice.phase === "test") {
        const { title, text } = wordsOf(notice, content);
        return answerOf(
          await call("chat.postMessage", { channel: to, ...plain, text: `${title}. ${text}` }, signal),
          "",
        );
      }
      const message = slackMessage(notice, { content, mayApprove: await mayApprove(notice.request) });
      if (notice.phase === "opened") {
        const answer = await call("chat.postMessage", { channel: to, ...plain, ...message }, signal);
        return answerOf(answer, `${answer.channel}/${answer.ts}`);
      }
      // What was never posted has nothing to update.
      if (notice.ref === "") return { answer: "accepted" };
      return answerOf(await updateMessage(call, notice.ref, message, signal), notice.ref);
    },
  };
}

/** Replaces a message by its name `CHANNEL/TS`. */
export function updateMessage(call: SlackCall, ref: string, message: SlackMessage, signal: AbortSignal) {
  const [channel, ts] = ref.split("/");
  return call("chat.update", { channel, ts, ...plain, ...message }, signal);
}

/** Options by which Slack makes no link, mention or preview of a text. */
const plain = { mrkdwn: false, parse: "none", link_names: false, unfurl_links: false, unfurl_media: false } as const;

function answerOf({ ok, error, status, retryAfterMs }: SlackAnswer & Waits, ref: string): ChannelAnswer {
  if (ok) return { answer: "accepted", ref };
  const why = `it answered ${error.slice(0, 100)}`;
  const isLater = status === 429 || status >= 500 || passing.has(error);
  if (isLater) return { answer: "retry", why, ...(retryAfterMs !== undefined && { afterMs: retryAfterMs }) };
  return { answer: "refused", why, ...(ending.has(error) && { disable: true }) };
}

/** Errors of Slack that pass. */
const passing: ReadonlySet<string> = new Set(
  "ratelimited rate_limited internal_error fatal_error service_unavailable request_timeout".split(" "),
);
/** Errors after which no message of this token is accepted. */
const ending: ReadonlySet<string> = new Set(
  "invalid_auth not_authed account_inactive token_revoked token_expired".split(" "),
);

/** A message. Text of an agent stands only where Slack reads no markup. */
export interface SlackMessage {
  readonly text: string;
  readonly blocks: SlackBlock[];
}

type PlainText = { type: "plain_text"; text: string; emoji: false };
type Button = {
  type: "button";
  action_id: string;
  text: PlainText;
  value?: string;
  url?: string;
  style?: "danger" | "primary";
};
type SlackBlock =
  | { type: "header" | "section"; text: PlainText }
  | { type: "context"; elements: PlainText[] }
  | { type: "actions"; block_id: string; elements: Button[] }
  | {
      type: "rich_text";
      elements: { type: "rich_text_preformatted"; elements: { type: "text"; text: string }[] }[];
    };

/** Maximum number of characters of a request that a message shows; what is longer is read behind the link. */
const maxShown = 3_000;

/** Builds the message of a request: as it waits, or as it ended. */
export function slackMessage(
  notice: Exclude<Notice, { phase: "test" }>,
  { content, mayApprove }: { content: ChannelContent; mayApprove: boolean },
): SlackMessage {
  const { request, url } = notice;
  const { title, text } = wordsOf(notice, content === "none" ? "none" : "risk");
  const open: Button = { type: "button", action_id: "open", text: plainText("Open"), url };
  const actions = (...elements: Button[]): SlackBlock => ({ type: "actions", block_id: blockId, elements });
  const section = (words: string): SlackBlock[] => (words === "" ? [] : [{ type: "section", text: plainText(words) }]);
  if (notice.phase === "settled") {
    const asked = content === "none" ? "" : wordsOf({ ...notice, phase: "opened" }, "risk").title;
    return { text: escaped(title), blocks: [...section(text || title), ...section(asked), actions(open)] };
  }
  if (content === "none") return { text: escaped(title), blocks: [...section(title), actions(open)] };
  const lines = content === "full" ? shownInSlack(request) : undefined;
  const value = `${request.id}:${request.digest}`;
  const reject: Button = { type: "button", action_id: "reject", text: plainText("Reject"), value, style: "danger" };
  const approve: Button = {
    type: "button",
    action_id: "approve",
    text: plainText("Approve once"),
    value,
    style: "primary",
  };
  const heading = request.risks.map(({ kind }) => riskWords.get(kind) ?? "").find(Boolean) ?? "a request waits";
  const until = `until ${new Date(request.expires).toISOString()} · session ${request.sessionId}`;
  return {
    text: escaped(title),
    blocks: [
      { type: "header", text: plainText(heading) },
      ...section(title),
      ...section(text),
      ...(lines === undefined ? [] : [preformatted(lines)]),
      { type: "context", elements: [plainText(until)] },
      actions(open, reject, ...(lines !== undefined && mayApprove ? [approve] : [])),
    ],
  };
}

/** Returns the text by which a message shows a whole request; undefined if it does not fit. */
export function shownInSlack(request: PermissionRequest): string | undefined {
  const text = shownWhole(request)?.join("\n");
  return text !== undefined && text.length <= maxShown ? text : undefined;
}

const preformatted = (text: string): SlackBlock => ({
  type: "rich_text",
  elements: [{ type: "rich_text_preformatted", elements: [{ type: "text", text }] }],
});

/** The block of the buttons. */
export const blockId = "toolgate";

const plainText = (text: string): PlainText => ({ type: "plain_text", text, emoji: false });

/** Escapes text where Slack would read control sequences, such as in the text of a notification. */
const escaped = (text: string) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
