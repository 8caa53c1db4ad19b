import type { Logger } from "../core/logger.ts";
import type { Channel, ChannelAnswer, ClaimedNotice, NoticeResult, NoticeSender, NoticeStore } from "./ports.ts";
import { channelsFor, type NotifyRule } from "./routing.ts";

/** Delivers notices to channels. */
export interface NoticeOutbox extends NoticeSender {
  /** Claims and delivers what is due; others call it once a second, and at a settlement. */
  tick(): Promise<void>;
  /** Counts by channel and outcome, and the delays, since the start. */
  counts(): ReadonlyMap<string, ChannelCounts>;
  /** Notices of the whole store that are to be delivered, and the time for which the oldest one is due. */
  queue(): Promise<{ waiting: number; oldestMs: number }>;
  /** Aborts what is being sent; another replica takes it over once the lease ends. */
  close(): Promise<void>;
}

/** Counters of a channel. */
export interface ChannelCounts {
  sent: number;
  updated: number;
  retried: number;
  dead: number;
  /** Sum of the times from the opening of a request to the provider's acceptance, in ms. */
  delayMs: number;
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

/** Creates the outbox of a replica. */
export function createNoticeOutbox(options: NoticeOutboxOptions): NoticeOutbox {
  const { store, channels, rules, publicUrl, replicaId, now, log, timeoutMs = 10_000 } = options;
  const sending = new Map<string, Set<Promise<void>>>([...channels.keys()].map((name) => [name, new Set()]));
  const disabled = new Set<string>();
  const counted = new Map([...channels.keys()].map((name) => [name, newCounts()]));
  const closing = new AbortController();

  const freeIn = (channel: string) =>
    closing.signal.aborted ? 0 : maxSending - (sending.get(channel)?.size ?? maxSending);

  function launch(notice: ClaimedNotice): void {
    const running = sending.get(notice.channel);
    const delivery = deliver(notice)
      .catch((error: unknown) => {
        log.warn("the result of a notice was not recorded; it is delivered again", { error, channel: notice.channel });
      })
      .finally(() => {
        running?.delete(delivery);
      });
    running?.add(delivery);
  }

  async function deliver(notice: ClaimedNotice): Promise<void> {
    const { ask, channel, phase, ref } = notice;
    const found = await store.findAsk(ask);
    const counts = counted.get(channel) ?? newCounts();
    if (found === undefined) return store.noteNotice(notice, replicaId, { result: "dead", why: "the request is gone" });
    const { request, settled } = found;
    // The step that settled the request has made this notice due again.
    if (phase === "opened" && settled !== undefined)
      return store.noteNotice(notice, replicaId, { result: "accepted", ref });
    const id = `msg_${ask}_${phase}`;
    const url = `${publicUrl}/r/${ask}`;
    const answer = await attempt(channel, { id, phase, request, settled, url, ref });
    const result = resultOf(answer, notice, phase === "opened" ? request.expires : Number.POSITIVE_INFINITY);
    if (result.result === "accepted") {
      counts[phase === "opened" ? "sent" : "updated"] += 1;
      if (phase === "opened") counts.delayMs += now() - request.created;
    } else counts[result.result === "retry" ? "retried" : "dead"] += 1;
    if (result.result === "dead")
      log.warn("a notice was not delivered", { channel, permissionId: ask, reason: result.why });
    await store.noteNotice(notice, replicaId, result);
  }

  async function attempt(channel: string, notice: Parameters<Channel["send"]>[0]): Promise<ChannelAnswer> {
    // What other replicas wrote for it, or this one before it was disabled.
    if (disabled.has(channel)) return { answer: "refused", why: "the channel takes no more notices" };
    const signal = AbortSignal.any([closing.signal, AbortSignal.timeout(timeoutMs)]);
    try {
      const answer = await channels.get(channel)?.send(notice, signal);
      if (answer?.answer === "refused" && answer.disable) {
        disabled.add(channel);
        log.error("a channel takes no more notices until the service starts again", { channel, reason: answer.why });
      }
      return answer ?? { answer: "refused", why: "the channel is not configured" };
    } catch (error) {
      // Addresses of providers may contain a secret, so their errors are not passed on.
      const code = error instanceof Error && "code" in error ? String(error.code) : "";
      return { answer: "retry", why: signal.aborted ? "it did not answer in time" : code || "it cannot be reached" };
    }
  }

  function resultOf(answer: ChannelAnswer, { attempts, phase, ref }: ClaimedNotice, end: number): NoticeResult {
    if (answer.answer === "accepted") return { result: "accepted", ref: answer.ref ?? ref };
    if (answer.answer === "refused") return { result: "dead", why: answer.why };
    const pauseMs = Math.max(pausesMs[Math.min(attempts, pausesMs.length - 1)] ?? 0, answer.afterMs ?? 0);
    const at = now() + pauseMs;
    if (at >= end) return { result: "dead", why: `${answer.why}, until the request ended` };
    if (phase === "settled" && attempts >= maxUpdates) return { result: "dead", why: answer.why };
    return { result: "retry", at };
  }

  return {
    noticesOf(request, workspace) {
      const route = channelsFor(rules, request, workspace);
      const enabled = (route?.channels ?? []).filter((channel) => !disabled.has(channel));
      return enabled.map((channel) => ({
        ...{ ask: request.id, channel, dueAt: now() + (route?.afterMs ?? 0), leaseMs },
        owner: route?.afterMs === 0 && freeIn(channel) > 0 ? replicaId : "",
      }));
    },
    opened(notices) {
      for (const { ask, channel, owner } of notices)
        if (owner === replicaId) launch({ ask, channel, phase: "opened", attempts: 0, ref: "" });
    },
    async tick() {
      const free = new Map([...channels.keys()].map((name) => [name, freeIn(name)] as const).filter(([, n]) => n > 0));
      if (free.size === 0) return;
      for (const notice of await store.claimNotices({ owner: replicaId, leaseMs, channels: free })) launch(notice);
    },
    counts: () => counted,
    async queue() {
      const { waiting, oldestDue } = await store.countNotices();
      return { waiting, oldestMs: oldestDue === undefined ? 0 : Math.max(0, now() - oldestDue) };
    },
    async close() {
      closing.abort();
      await Promise.all([...sending.values()].flatMap((of) => [...of]));
    },
  };
}

const newCounts = (): ChannelCounts => ({ sent: 0, updated: 0, retried: 0, dead: 0, delayMs: 0 });
