import { randomUUID } from "node:crypto";
import type { Logger } from "../core/logger.ts";
import type {
  Channel,
  ChannelAnswer,
  ChannelCounts,
  ChannelDesk,
  ClaimedNotice,
  NewNotice,
  Notice,
  NoticeResult,
  NoticeSender,
  NoticeStore,
} from "./ports.ts";
import { failureOf } from "./post.ts";
import { type NoticeAudience, type NotifyRule, ruleFor } from "./routing.ts";

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
  /** Checks if a person belongs to an audience. */
  isAddressed: (person: string, to: NoticeAudience) => boolean;
  /** Time after which an attempt is abandoned. */
  timeoutMs?: number;
  /** Attempts that this replica makes at one channel in a second. */
  maxPerSecond?: number;
  /** Notices of one channel that may wait; what a request adds to more is dead. */
  maxWaiting?: number;
}

/** Deliveries of one channel at the same time: a provider that stalls holds these, and nothing of another channel. */
const maxSending = 4;
/** Notices of one request; what it has more is dead. */
const maxRecipients = 8;
/** Longer than an attempt may take, and the wait for one that begins in time. */
const leaseMs = 30_000;
const maxHeldMs = 15_000;
/** Pauses after failed attempts; the last one repeats. */
const pausesMs = [2_000, 10_000, 30_000, 120_000, 300_000];
/** Attempts to report a settlement, about an hour. */
const maxUpdates = 15;

/** A channel of this replica, with what was delivered to it. */
interface ChannelState {
  readonly channel: Channel;
  readonly sending: Set<Promise<void>>;
  readonly counts: ChannelCounts;
  /** Notices that this replica claimed by opening their requests, while others were being sent. */
  held: { notice: ClaimedNotice; since: number }[];
  /** True if a claim may find more than what was taken. */
  hasMore: boolean;
  /** Attempts that may begin now, as of a time. */
  allowance: { left: number; at: number };
  /** Notices that waited at the last count, and those that this replica wrote since. */
  queue: { counted: number; written: number };
  disabled: boolean;
  lastAccepted: number;
  lastFailed: number;
  lastFailure: string;
}

/** Creates the outbox of a replica. */
export function createNoticeOutbox(options: NoticeOutboxOptions): NoticeOutbox {
  const { store, channels, rules, publicUrl, replicaId, now, log, isAddressed } = options;
  const { timeoutMs = 10_000, maxPerSecond = 20, maxWaiting = 10_000 } = options;
  const states = new Map([...channels].map(([name, channel]) => [name, stateOf(channel, maxPerSecond)] as const));
  const closing = new AbortController();

  /** Returns the number of attempts that may begin. */
  function freeIn(state: ChannelState): number {
    const { left, at } = state.allowance;
    const gained = (Math.max(0, now() - at) * maxPerSecond) / 1_000;
    state.allowance = { left: Math.min(maxPerSecond, left + gained), at: now() };
    if (closing.signal.aborted) return 0;
    return Math.max(0, Math.min(maxSending - state.sending.size, Math.floor(state.allowance.left)));
  }

  /** Begins attempts of notices that are held. Those that wait too long are claimed again after the lease. */
  function sendHeld(state: ChannelState): void {
    state.held = state.held.filter(({ since }) => now() < since + maxHeldMs);
    for (const { notice } of state.held.splice(0, freeIn(state))) launch(notice, state);
  }

  function launch(notice: ClaimedNotice, state: ChannelState): void {
    state.allowance.left -= 1;
    const delivery = deliver(notice, state)
      .catch((error: unknown) => {
        log.warn("the result of a notice was not recorded; it is delivered again", { error, channel: notice.channel });
      })
      .finally(() => {
        state.sending.delete(delivery);
        sendHeld(state);
        // A failure is reported by the claim of the next second.
        if (state.hasMore) claim().catch(() => undefined);
      });
    state.sending.add(delivery);
  }

  let claiming: Promise<void> | undefined;
  function claim(): Promise<void> {
    claiming ??= claimDue().finally(() => {
      claiming = undefined;
    });
    return claiming;
  }

  async function claimDue(): Promise<void> {
    const free = new Map<string, number>();
    for (const [name, state] of states) {
      sendHeld(state);
      const left = freeIn(state) - state.held.length;
      if (left > 0) free.set(name, left);
    }
    if (free.size === 0) return;
    const found = await store.claimNotices({ owner: replicaId, leaseMs, channels: free });
    for (const [name, limit] of free) {
      const state = states.get(name);
      const own = found.filter(({ channel }) => channel === name);
      if (state === undefined) continue;
      state.hasMore = own.length >= limit;
      for (const notice of own) launch(notice, state);
    }
  }

  /** Counts the queues again once this replica has added much to one of them. */
  async function countQueues(): Promise<void> {
    const isGrown = ({ queue: { counted, written } }: ChannelState) =>
      written >= maxWaiting / 10 || counted + written >= maxWaiting;
    if (![...states.values()].some(isGrown)) return;
    const before = [...states.values()].map(({ queue: { written } }) => written);
    const queues = await store.countNotices();
    for (const [index, [name, state]] of [...states].entries())
      state.queue = {
        counted: queues.get(name)?.waiting ?? 0,
        written: state.queue.written - (before[index] ?? 0),
      };
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

  /** Returns notices of a request, already claimed where this replica can send them at once. */
  function noticesBy(
    { channels, to, afterMs }: Pick<NotifyRule, "channels" | "to" | "afterMs">,
    ask: string,
  ): NewNotice[] {
    const targets = [...new Set(channels)].flatMap((channel) => {
      const state = states.get(channel);
      if (state === undefined || state.disabled) return [];
      const people = state.channel.people?.().filter((person) => isAddressed(person, to)) ?? [""];
      return people.map((recipient) => ({ channel, state, recipient }));
    });
    for (const { state } of targets.slice(maxRecipients)) state.counts.dead += 1;
    if (targets.length > maxRecipients)
      log.warn(
        `a request is sent to ${maxRecipients} recipients at most; narrow \`to\` of its [[notify]] or escalate`,
        {
          permissionId: ask,
          count: targets.length,
        },
      );
    return targets.slice(0, maxRecipients).map(({ channel, state, recipient }) => {
      const key = { ask, channel, recipient, dueAt: now() + afterMs, leaseMs };
      if (state.queue.counted + state.queue.written >= maxWaiting) {
        state.counts.dead += 1;
        return { ...key, owner: "", dead: `${maxWaiting} notices wait already` };
      }
      state.queue.written += 1;
      const isNow = afterMs === 0 && freeIn(state) > state.held.length;
      if (afterMs === 0 && !isNow) state.hasMore = true;
      return { ...key, owner: isNow ? replicaId : "", dead: "" };
    });
  }

  return {
    noticesOf(request, workspace) {
      const rule = ruleFor(rules, request, workspace);
      return rule === undefined ? [] : noticesBy(rule, request.id);
    },
    // Not claimed: a channel that has a notice already gets none, which only the step of the store finds out.
    escalationsOf: (ask, steps) =>
      steps
        .flatMap(({ to, channels }) => noticesBy({ channels, to: { groups: to, people: [] }, afterMs: 0 }, ask))
        .map((notice) => ({ ...notice, owner: "" })),
    opened(notices) {
      for (const { ask, channel, recipient, owner } of notices) {
        const state = states.get(channel);
        if (owner !== replicaId || state === undefined) continue;
        const notice = { ask, channel, recipient, phase: "opened", attempts: 0, ref: "" } as const;
        state.held.push({ notice, since: now() });
        sendHeld(state);
      }
    },
    async tick() {
      await claim();
      await countQueues();
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

function stateOf(channel: Channel, left: number): ChannelState {
  return {
    ...{ channel, sending: new Set(), held: [], hasMore: false },
    counts: { sent: 0, updated: 0, retried: 0, dead: 0, delayMs: 0 },
    allowance: { left, at: 0 },
    queue: { counted: 0, written: 0 },
    ...{ disabled: false, lastAccepted: 0, lastFailed: 0, lastFailure: "" },
  };
}
