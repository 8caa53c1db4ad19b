import { setTimeout as delay } from "node:timers/promises";
import type { PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Logger } from "../core/logger.ts";
import { RequestError } from "../core/request-error.ts";
import { within } from "../core/within.ts";
import type { ChannelContent } from "./ports.ts";
import { blockId, type SlackCall, slackMessage, slackObject, updateMessage } from "./slack.ts";

/** What an answer in Slack does; the service behind it decides. */
export interface SlackAnswers {
  /** Returns the person whose account it is; empty if it is not linked. */
  personOf(account: string): string;
  /** Links an account; returns why not, for the person who typed the code. */
  link(account: string, code: string): Promise<string | undefined>;
  find(permissionId: string): Promise<{ request: PermissionRequest; settled?: PermissionSettled } | undefined>;
  /** Settles a request for a person; throws what the contract would answer. */
  answer(answer: SlackReply): Promise<void>;
}

/** An answer that a person gave in Slack. */
export interface SlackReply {
  readonly request: PermissionRequest;
  readonly personId: string;
  readonly reply: PermissionReply;
  /** The digest of the message whose button was pressed. */
  readonly expectedDigest: string;
  readonly message: string;
}

/** A channel whose answers a socket brings. */
export interface SlackChannel {
  /** The calls with the token of the bot. */
  readonly call: SlackCall;
  /** The app, its team and the channel: what comes from elsewhere is dropped. */
  readonly app: string;
  readonly team: string;
  readonly to: string;
  readonly content: ChannelContent;
  readonly publicUrl: string;
  readonly answers: SlackAnswers;
}

/** Options of the socket of one app. Slack gives each answer to one socket of an app, so its channels share it. */
interface SlackSocketOptions {
  /** The calls with the token of the app. */
  readonly openSocket: SlackCall;
  /** Domain of the sockets; that of the API. */
  readonly domain: string;
  readonly channels: readonly SlackChannel[];
  readonly log: Logger;
}

/** Pauses between attempts to connect; the last one repeats. */
const pausesMs = [1_000, 2_000, 5_000, 15_000, 60_000];
/** Time after which another socket replaces one, since a connection that is lost without a word looks like a quiet one. */
const renewMs = 600_000;
/** Slack waits 3 s for the acknowledgement of an envelope. */
const ackMs = 2_500;
const callMs = 10_000;
const maxEnvelope = 262_144;

/** Receives the answers of an app's channels over a socket that this replica opens, until it is closed. */
export function startSlackSocket({ openSocket, domain, channels, log }: SlackSocketOptions): {
  close(): Promise<void>;
} {
  const closing = new AbortController();
  const { signal } = closing;

  async function open(): Promise<WebSocket> {
    const { ok, error, url } = await openSocket("apps.connections.open", {}, callSignal(signal));
    if (!ok) throw new Error(error || "it gave no socket");
    checkSocketUrl(url, domain);
    const socket = new WebSocket(url);
    socket.addEventListener("message", ({ data }) => {
      if (typeof data !== "string" || data.length > maxEnvelope) return;
      receive(channels, socket, slackObject(data)).catch((cause: unknown) => {
        log.warn("an answer in Slack was not taken", { error: cause instanceof Error ? cause.message : "" });
      });
    });
    return socket;
  }

  async function run(): Promise<void> {
    let former: WebSocket | undefined;
    for (let failures = 0; !signal.aborted; ) {
      try {
        const socket = await open();
        const ended = endOf(socket, signal);
        const isReady = await within(callMs, firstMessage(socket), () => false);
        former?.close();
        former = socket;
        if (!isReady) throw new Error("it did not greet");
        failures = 0;
        await within(renewMs, ended, () => undefined);
        // Slack may close each socket at once.
        await delay(pausesMs[0], undefined, { signal });
      } catch (error) {
        if (signal.aborted) break;
        const pause = pausesMs[Math.min(failures++, pausesMs.length - 1)] ?? 0;
        log.warn("no socket to Slack: answers there are not received; it is tried again", {
          error: error instanceof Error ? error.message : "",
        });
        await delay(pause, undefined, { signal }).catch(() => undefined);
      }
    }
    former?.close();
  }

  const running = run();
  return {
    async close() {
      closing.abort();
      await running;
    },
  };
}

/** A socket leads to Slack itself, encrypted unless the API is a program of this machine, as in a test. */
function checkSocketUrl(written: string, domain: string): void {
  const { protocol, hostname } = new URL(written);
  const isThere = hostname === domain || hostname.endsWith(`.${domain}`);
  if (isThere && (protocol === "wss:" || domain === "127.0.0.1")) return;
  throw new Error("the address of the socket is not one of Slack");
}

/** Resolves when a socket ends, or announces that it will. */
function endOf(socket: WebSocket, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => resolve();
    socket.addEventListener("close", end);
    socket.addEventListener("error", end);
    signal.addEventListener("abort", end);
    socket.addEventListener("message", ({ data }) => {
      if (typeof data === "string" && slackObject(data).type === "disconnect") end();
    });
  });
}

const firstMessage = (socket: WebSocket) =>
  new Promise<boolean>((resolve) => {
    socket.addEventListener("message", () => resolve(true), { once: true });
    socket.addEventListener("close", () => resolve(false), { once: true });
  });

const callSignal = (signal?: AbortSignal) =>
  signal ? AbortSignal.any([signal, AbortSignal.timeout(callMs)]) : AbortSignal.timeout(callMs);

type Read = Readonly<Record<string, unknown>>;

const object = (value: unknown): Read => (typeof value === "object" && value !== null ? { ...value } : {});
const text = (value: unknown): string => (typeof value === "string" ? value : "");

/** Handles one envelope, and acknowledges it in time in any case, since Slack sends it again otherwise. */
async function receive(channels: readonly SlackChannel[], socket: WebSocket, envelope: Read): Promise<void> {
  const id = text(envelope.envelope_id);
  if (id === "") return;
  const ack = (payload?: object) => socket.send(JSON.stringify({ envelope_id: id, ...(payload && { payload }) }));
  const payload = object(envelope.payload);
  const view = object(payload.view);
  const metadata = slackObject(text(view.private_metadata));
  const to = payload.type === "view_submission" ? metadata.to : object(payload.channel).id;
  const channel = channels.find((channel) => channel.to === to);
  const sender = channel && envelope.type === "interactive" ? senderOf(payload, channel) : undefined;
  if (channel === undefined || sender === undefined) return ack();
  if (payload.type === "block_actions") {
    ack();
    await onAction(channel, payload, sender);
  } else if (payload.type === "view_submission") {
    const done = onSubmission(channel, view, metadata, sender);
    ack(await within(ackMs, done, () => undefined));
    await done;
  } else ack();
}

/** An account of the team that used the app. */
interface Sender {
  readonly account: string;
  readonly user: string;
}

/** Returns the sender of a payload; undefined for another app or team, and for accounts of other teams in a shared channel. */
function senderOf(payload: Read, { app, team }: SlackChannel): Sender | undefined {
  const from = object(payload.user);
  const user = text(from.id);
  const isOurs = payload.api_app_id === app && object(payload.team).id === team;
  if (!isOurs || (from.team_id ?? team) !== team || !/^[UW][A-Z0-9]{2,31}$/.test(user)) return undefined;
  return { account: `slack:${team}/${user}`, user };
}

/** A button of a message. */
interface Pressed {
  readonly permissionId: string;
  readonly digest: string;
  readonly ts: string;
}

function pressedOf(value: string, ts: string): Pressed | undefined {
  const [, permissionId, digest] = /^([\w-]{1,64}):([\w:-]{1,128})$/.exec(value) ?? [];
  if (permissionId === undefined || digest === undefined || !/^\d{1,16}\.\d{1,16}$/.test(ts)) return undefined;
  return { permissionId, digest, ts };
}

async function onAction(channel: SlackChannel, payload: Read, sender: Sender): Promise<void> {
  const { call, to, answers } = channel;
  const actions = Array.isArray(payload.actions) ? payload.actions : [];
  const action = object(actions[0]);
  const name = text(action.action_id);
  const isButton = actions.length === 1 && action.block_id === blockId && (name === "approve" || name === "reject");
  const pressed = pressedOf(text(action.value), text(object(payload.message).ts));
  if (!isButton || pressed === undefined) return;
  const personId = answers.personOf(sender.account);
  const open = (view: object) => call("views.open", { trigger_id: text(payload.trigger_id), view }, callSignal());
  if (personId === "") await open({ ...linkView, private_metadata: JSON.stringify({ to }) });
  else if (name === "reject")
    await open({ ...rejectView, private_metadata: JSON.stringify({ to, value: action.value, ts: pressed.ts }) });
  else await settle(channel, sender, { ...pressed, personId, reply: PermissionReply.ONCE, message: "" });
}

/** Handles the form of a code or of a rejection; returns what the form then shows, or undefined to close it. */
async function onSubmission(
  channel: SlackChannel,
  view: Read,
  { value, ts }: Read,
  sender: Sender,
): Promise<object | undefined> {
  const { app, team, answers } = channel;
  if (view.team_id !== team || view.app_id !== app) return undefined;
  const field = object(object(object(object(view.state).values)[blockId]).text);
  const typed = text(field.value).trim();
  if (view.callback_id === "link") {
    const why = await answers.link(sender.account, typed);
    return why === undefined ? undefined : { response_action: "errors", errors: { [blockId]: why } };
  }
  if (view.callback_id !== "reject") return undefined;
  const pressed = pressedOf(text(value), text(ts));
  const personId = answers.personOf(sender.account);
  if (pressed === undefined || personId === "") return undefined;
  await settle(channel, sender, {
    ...pressed,
    personId,
    reply: PermissionReply.REJECT,
    message: typed.slice(0, 1_000),
  });
  return undefined;
}

/** Settles a request. A refusal is shown to the person alone; a message of a request that has ended is replaced by its outcome. */
async function settle(
  { answers, call, to, content, publicUrl }: SlackChannel,
  { user }: Sender,
  { permissionId, digest, ts, ...answer }: Pressed & Pick<SlackReply, "personId" | "reply" | "message">,
): Promise<void> {
  const found = await answers.find(permissionId);
  let why = found === undefined ? "The request is not known any more." : "";
  try {
    if (found) await answers.answer({ request: found.request, expectedDigest: digest, ...answer });
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    why = error.message;
  }
  const settled = found && (await answers.find(permissionId))?.settled;
  if (found && settled) {
    const url = `${publicUrl}/r/${permissionId}`;
    const message = slackMessage(
      { phase: "settled", request: found.request, settled, url, id: "", ref: "", recipient: "" },
      { content, mayApprove: false },
    );
    await updateMessage(call, `${to}/${ts}`, message, callSignal());
  }
  if (why === "") return;
  const blocks = [{ type: "section", text: plainText(why.slice(0, 3_000)) }];
  await call("chat.postEphemeral", { channel: to, user, text: "Toolgate", blocks }, callSignal());
}

const plainText = (words: string) => ({ type: "plain_text", text: words, emoji: false });

const linkView = {
  type: "modal",
  callback_id: "link",
  title: plainText("Link your account"),
  submit: plainText("Link"),
  close: plainText("Cancel"),
  blocks: [
    {
      type: "input",
      block_id: blockId,
      label: plainText("Code of the page People, or of `toolgate people link`"),
      element: { type: "plain_text_input", action_id: "text", max_length: 40 },
    },
  ],
};

const rejectView = {
  type: "modal",
  callback_id: "reject",
  title: plainText("Reject"),
  submit: plainText("Reject"),
  close: plainText("Cancel"),
  blocks: [
    {
      type: "input",
      block_id: blockId,
      optional: true,
      label: plainText("Advice for the agent"),
      element: { type: "plain_text_input", action_id: "text", multiline: true, max_length: 1_000 },
    },
  ],
};
