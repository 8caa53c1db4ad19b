import { randomUUID } from "node:crypto";
import type { Logger } from "../core/logger.ts";
import type {
  Channel,
  ChannelAnswer,
  ChannelCounts,
  ChannelDesk,
  ClaimedNotice,
  Notice,
  NoticeResult,
  NoticeSender,
  NoticeStore,
} from "./ports.ts";
import { failureOf } from "./post.ts";
import { channelsFor, type NotifyRule } from "./routing.ts";

/** Delivers notices to channels. */
export interface NoticeOutbox extends NoticeSender, ChannelDesk {
  /** Claims and delivers what is due; others call it once a second. */
  tick(): Promise<void>;
  /** Counts by channel and outcome, and the delays, since the start. */
  counts(): ReadonlyMap<string, ChannelCounts>;
  /** Notices of the whole store that are to be delivered, and the time for which the oldest one is due. */
  queue(): Promise<{ waiting: number; oldestMs: number }>;
  /** Aborts what is being sent; another replica takes it over once the lease ends. */
  close(): Promise<void>;
}

/** Options of the outbox. */
export interface NoticeOutboxOptions {
  store: NoticeStore;
  channels: ReadonlyMap<string, Channel>;
  rules: readonly NotifyRule[];
  publicUrl: string;
  replicaId: string;
  /** Time of the store. */
  now: () => number;
  log: Logger;
  /** Time after which an attempt is abandoned. */
  timeoutMs?: number;
}

/** Deliveries of one channel at the same time: a provider that stalls holds these, and nothing of another channel. */
const maxSending = 4;
/** Longer than an attempt may take. */
const leaseMs = 30_000;
/** Pauses after failed attempts; the last one repeats. */
const pausesMs = [2_000, 10_000, 30_000, 120_000, 300_000];
/** Attempts to report a settlement, about an hour. */
const maxUpdates = 15;

/** A channel of this replica, with what was delivered to it. */
interface ChannelState {
  readonly channel: Channel;
  readonly sending: Set<Promise<void>>;
  readonly counts: ChannelCounts;
  disabled: boolean;
  lastAccepted: number;
  lastFailed: number;
  lastFailure: string;
}

/** Creates the outbox of a replica. */
export function createNoticeOutbox(options: NoticeOutboxOptions): NoticeOutbox {
  const { store, channels, rules, publicUrl, replicaId, now, log, timeoutMs = 10_000 } = options;
  const states = new Map([...channels].map(([name, channel]) => [name, stateOf(channel)] as const));
  const closing = new AbortController();

  const freeIn = ({ sending }: ChannelState) => (closing.signal.aborted ? 0 : maxSending - sending.size);

  function launch(notice: ClaimedNotice): void {
    const state = states.get(notice.channel);
    if (state === undefined) return;
    const delivery = deliver(notice, state)
      .catch((error: unknown) => {
        log.warn("the result of a notice was not recorded; it is delivered again", { error, channel: notice.channel });
      })
      .finally(() => {
        state.sending.delete(delivery);
      });
    state.sending.add(delivery);
  }

  async function deliver(notice: ClaimedNotice, state: ChannelState): Promise<void> {
    const { ask, channel, phase, ref } = notice;
    const note = (result: NoticeResult) => store.noteNotice(notice, replicaId, result);
    const found = await store.findAsk(ask);
    if (found === undefined) return note({ result: "dead", why: "the request is gone" });
    const { request, settled } = found;
    // The step that settled the request has made this notice due again.
    if (phase === "opened" && settled !== undefined) return note({ result: "accepted", ref });
    const answer = await attempt(state, channel, noticeOf(notice, request, settled));
    const result = resultOf(answer, notice, phase === "opened" ? request.expires : Number.POSITIVE_INFINITY);
    const { counts } = state;
    if (result.result === "accepted") {
      counts[phase === "opened" ? "sent" : "updated"] += 1;
      if (phase === "opened") counts.delayMs += now() - request.created;
    } else counts[result.result === "retry" ? "retried" : "dead"] += 1;
    if (result.result === "dead")
      log.warn("a notice was not delivered", { channel, permissionId: ask, reason: result.why });
    await note(result);
  }

  function noticeOf(
    { ask, phase, ref, recipient }: ClaimedNotice,
    request: Extract<Notice, { phase: "opened" }>["request"],
    settled: Extract<Notice, { phase: "settled" }>["settled"] | undefined,
  ): Notice {
    const id = [`msg_${ask}_${phase}`, ...(recipient === "" ? [] : [recipient])].join("_");
    const rest = { id, url: `${publicUrl}/r/${ask}`, ref, recipient, request };
    return settled === undefined ? { ...rest, phase: "opened" } : { ...rest, phase: "settled", settled };
  }

  async function attempt(state: ChannelState, name: string, notice: Notice): Promise<ChannelAnswer> {
    // What other replicas wrote for it, or this one before it was disabled.
    if (state.disabled && notice.phase !== "test")
      return { answer: "refused", why: "the channel takes no more notices" };
    const answer = await answerFrom(state.channel, notice);
    if (answer.answer === "accepted") {
      state.lastAccepted = now();
      if (notice.phase === "test") state.disabled = false;
      return answer;
    }
    state.lastFailed = now();
    state.lastFailure = answer.why;
    if (answer.answer === "refused" && answer.disable && !state.disabled) {
      state.disabled = true;
      log.error("a channel takes no more notices until the service starts again, or a test of it is accepted", {
        channel: name,
        reason: answer.why,
      });
    }
    return answer;
  }

  async function answerFrom(channel: Channel, notice: Notice): Promise<ChannelAnswer> {
    const signal = AbortSignal.any([closing.signal, AbortSignal.timeout(timeoutMs)]);
    try {
      return await channel.send(notice, signal);
    } catch (error) {
      const failure = failureOf(error);
      return signal.aborted ? { ...failure, why: "it did not answer in time" } : failure;
    }
  }

  function resultOf(answer: ChannelAnswer, { attempts, phase, ref }: ClaimedNotice, end: number): NoticeResult {
    if (answer.answer === "accepted") return { result: "accepted", ref: answer.ref ?? ref };
    const { why } = answer;
    if (answer.answer === "refused") return { result: "dead", why };
    const pauseMs = Math.max(pausesMs[Math.min(attempts, pausesMs.length - 1)] ?? 0, answer.afterMs ?? 0);
    const at = now() + pauseMs;
    if (at >= end) return { result: "dead", why: `${why}, until the request ended` };
    if (phase === "settled" && attempts >= maxUpdates) return { result: "dead", why };
    return { result: "retry", at, why };
  }

  return {
    noticesOf(request, workspace) {
      const route = channelsFor(rules, request, workspace);
      return (route?.channels ?? []).flatMap((channel) => {
        const state = states.get(channel);
        if (state === undefined || state.disabled) return [];
        const owner = route?.afterMs === 0 && freeIn(state) > 0 ? replicaId : "";
        const dueAt = now() + (route?.afterMs ?? 0);
        return [{ ask: request.id, channel, recipient: "", dueAt, leaseMs, owner, dead: "" }];
      });
    },
    opened(notices) {
      for (const { ask, channel, recipient, owner } of notices)
        if (owner === replicaId) launch({ ask, channel, recipient, phase: "opened", attempts: 0, ref: "" });
    },
    async tick() {
      const free = new Map([...states].map(([name, state]) => [name, freeIn(state)] as const).filter(([, n]) => n > 0));
      if (free.size === 0) return;
      for (const notice of await store.claimNotices({ owner: replicaId, leaseMs, channels: free })) launch(notice);
    },
    counts: () => new Map([...states].map(([name, { counts }]) => [name, counts])),
    async queue() {
      const queues = [...(await store.countNotices()).values()];
      const oldest = Math.min(now(), ...queues.map(({ oldestDue }) => oldestDue));
      return { waiting: queues.reduce((sum, { waiting }) => sum + waiting, 0), oldestMs: now() - oldest };
    },
    async channels() {
      const queues = await store.countNotices();
      return [...states].map(
        ([
          name,
          {
            channel: { kind, content },
            sending: _,
            ...state
          },
        ]) => ({
          ...{ name, kind, content, ...state },
          ...(queues.get(name) ?? { waiting: 0, oldestDue: 0 }),
        }),
      );
    },
    async test(name, recipient) {
      const state = states.get(name);
      const notice = { id: `msg_test_${randomUUID()}`, url: publicUrl, ref: "", recipient, phase: "test" } as const;
      return state && (await attempt(state, name, notice));
    },
    listNotices: store.listNotices,
    findAsk: store.findAsk,
    async close() {
      closing.abort();
      await Promise.all([...states.values()].flatMap(({ sending }) => [...sending]));
    },
  };
}

function stateOf(channel: Channel): ChannelState {
  const counts = { sent: 0, updated: 0, retried: 0, dead: 0, delayMs: 0 };
  return { channel, sending: new Set(), counts, disabled: false, lastAccepted: 0, lastFailed: 0, lastFailure: "" };
}
