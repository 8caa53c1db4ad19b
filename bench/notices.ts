import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { createNoticeOutbox } from "../src/reach/outbox.ts";
import type { Channel } from "../src/reach/ports.ts";
import { readTarget } from "../src/reach/post.ts";
import { createWebhook, readWebhookKey } from "../src/reach/webhook.ts";
import { openSqliteStore } from "../src/store/sqlite/store.ts";
import { addSession, answer, ask, callRef, fenceOf, openCall, owner, recordOf } from "../test/store/fixture.ts";
import { table } from "./report.ts";

/** Sizes of the measurement. Each provider gets a notice of each of the `requests`. */
export interface NoticesPlan {
  delays: number;
  rounds: number;
  steps: number;
  requests: number;
}

/** A provider: its answer to each attempt of a notice, by the number of the attempt; undefined: it stalls. */
type Answer = (attempt: number) => number | undefined;

const providers: Readonly<Record<string, Answer>> = {
  works: () => 204,
  fails: (attempt) => (attempt === 0 ? 503 : 204),
  throttles: (attempt) => (attempt === 0 ? 429 : 204),
  gone: () => 410,
  stalls: () => undefined,
};

interface Arrival {
  id: string;
  channel: string;
  at: number;
  status: number | undefined;
}

async function startProviders() {
  const arrivals: Arrival[] = [];
  const accepted = new Set<string>();
  const attempts = new Map<string, number>();
  const server = createServer((request, response) => {
    request.resume();
    const channel = request.url?.slice(1) ?? "";
    const id = String(request.headers["webhook-id"]);
    const key = `${channel} ${id}`;
    const attempt = attempts.get(key) ?? 0;
    attempts.set(key, attempt + 1);
    const status = providers[channel]?.(attempt);
    arrivals.push({ id, channel, at: performance.now(), status });
    if (status === 204) accepted.add(key);
    if (status !== undefined) response.writeHead(status).end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const begun: { id: string; at: number }[] = [];
  const channelOf = (name: string): Channel => {
    const webhook = createWebhook({
      target: readTarget(`http://127.0.0.1:${port}/${name}`),
      keys: [readWebhookKey(`whsec_${Buffer.alloc(32, 7).toString("base64")}`)],
      ...{ content: "risk", now: Date.now },
    });
    return {
      ...webhook,
      send(notice, signal) {
        begun.push({ id: notice.id, at: performance.now() });
        return webhook.send(notice, signal);
      },
    };
  };
  return { arrivals, accepted, begun, channelOf, stop: () => server.close().closeAllConnections() };
}

/** Opens a store with an outbox to these providers. `timeoutMs` stands for the 10 s after which an attempt at a stalled provider ends. */
async function start(
  channels: readonly string[],
  limits: { timeoutMs?: number; maxPerSecond?: number; maxWaiting?: number } = {},
) {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-notices-"));
  const store = await openSqliteStore({ directory });
  const { arrivals, accepted, begun, channelOf, stop } = await startProviders();
  const silent = () => undefined;
  const outbox = createNoticeOutbox({
    ...{ store: store.notices, publicUrl: "https://gate.example", replicaId: owner, now: store.calls.now },
    channels: new Map(channels.map((name) => [name, channelOf(name)])),
    rules: [
      {
        ...{ permission: "*", risk: [], agent: "*", workspace: "*", channels, afterMs: 0, approve: false },
        to: { groups: [], people: [] },
      },
    ],
    isAddressed: () => true,
    log: { debug: silent, info: silent, warn: silent, error: silent },
    ...limits,
  });
  const opened = { ...store, advance: silent, reopen: async () => opened, close: async () => undefined };
  const timer = setInterval(() => void outbox.tick(), 1_000);
  const sessions = 100;
  for (let i = 0; i < sessions; i++) await addSession(opened, `ses_${i}`);
  let count = 0;
  return {
    ...{ store, outbox, arrivals, accepted, begun },
    /** Accepts a call and opens a request as it does; returns the times that these steps took. */
    async request() {
      const id = `per_${count}`;
      const ref = callRef(`call_${count}`, `ses_${count % sessions}`, `ses_${count % sessions}`);
      count += 1;
      const accepts = performance.now();
      await openCall(opened, ref);
      const callMs = performance.now() - accepts;
      const record = await recordOf(opened, ref);
      const request = ask(ref, id, opened);
      const from = performance.now();
      const notices = outbox.noticesOf(request, "default");
      const step = { fence: { ...fenceOf(record), owner }, version: record.version, asks: [request], withdraw: [] };
      await store.calls.openAsks({ ...step, notices, message: "", maxOpenAsks: 100_000 });
      outbox.opened(notices);
      return { id, ref, from, callMs, openMs: performance.now() - from };
    },
    /** Answers a request; returns the time that the step took. */
    async settle({ ref, id }: { ref: ReturnType<typeof callRef>; id: string }): Promise<number> {
      const settlement = await answer(opened, ref, id);
      const from = performance.now();
      await store.permissions.settle(settlement);
      return performance.now() - from;
    },
    /** Waits until nothing is left; throws if the count stays the same for a minute. */
    async until(left: () => number | Promise<number>): Promise<void> {
      for (let [least, since] = [Number.POSITIVE_INFINITY, performance.now()]; ; await delay(50)) {
        const count = await left();
        if (count <= 0) return;
        if (count < least) [least, since] = [count, performance.now()];
        if (performance.now() - since > 60_000) throw new Error(`${count} notices were not accepted`);
      }
    },
    async close() {
      clearInterval(timer);
      await outbox.close();
      stop();
      await store.calls.close();
      await rm(directory, { recursive: true });
    },
  };
}

type Bench = Awaited<ReturnType<typeof start>>;

function quantile(values: readonly number[], part: number): number {
  const sorted = values.toSorted((one, other) => one - other);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? 0;
}

/** Measures notices at providers of this machine that work, fail, throttle, are gone and stall, on SQLite. */
export async function measureNotices(plan: NoticesPlan, print: (text: string) => void): Promise<void> {
  print("A webhook on this machine, its requests opened on SQLite as a call opens them.");
  print(await measureDelay(plan.delays));
  print(await measureLatency(plan.rounds, plan.steps));
  print(await measureLosses(plan.requests));
}

/** Measures the time from the opening of a request to the arrival at the provider, at ten requests a second. */
async function measureDelay(requests: number): Promise<string> {
  const bench = await start(["works"]);
  const from = new Map<string, number>();
  for (let i = 0; i < requests; i++) {
    const { id, from: at } = await bench.request();
    from.set(`msg_${id}_opened`, at);
    await delay(100);
  }
  await bench.until(() => requests - bench.arrivals.length);
  const delays = bench.arrivals.map(({ id, at }) => at - (from.get(id) ?? 0));
  await bench.close();
  const [p50, p95, p100] = [0.5, 0.95, 1].map((part) => `${quantile(delays, part).toFixed(1)} ms`);
  return `From the opening to the provider, ${requests} requests, ten a second: p50 ${p50}, p95 ${p95}, maximum ${p100}.`;
}

/** Compares the steps of a call that asks without a notice, without one again, with one to a provider that stalls, and that works. */
async function measureLatency(rounds: number, requests: number): Promise<string> {
  const kinds = {
    "no notice": [],
    "no notice, again": [],
    "a provider that stalls": ["stalls"],
    "one that works": ["works"],
  };
  const steps = ["the call is accepted", "its request opens", "the answer settles it"] as const;
  const benches = new Map<string, Bench>();
  for (const [kind, channels] of Object.entries(kinds)) benches.set(kind, await start(channels, { timeoutMs: 60_000 }));
  const medians = new Map<string, number[]>();
  for (let round = 0; round < rounds; round++) {
    const order = round % 2 === 0 ? [...benches] : [...benches].toReversed();
    for (const [kind, bench] of order) {
      const times: number[][] = [[], [], []];
      for (let i = 0; i < requests; i++) {
        const asked = await bench.request();
        for (const [step, took] of [asked.callMs, asked.openMs, await bench.settle(asked)].entries())
          times[step]?.push(took);
      }
      for (const [step, name] of steps.entries()) {
        const key = `${name}: ${kind}`;
        medians.set(key, [...(medians.get(key) ?? []), quantile(times[step] ?? [], 0.5)]);
      }
    }
  }
  for (const bench of benches.values()) await bench.close();
  const rows = steps.flatMap((step) =>
    Object.keys(kinds).map((kind) => {
      const times = medians.get(`${step}: ${kind}`) ?? [];
      const control = medians.get(`${step}: no notice`) ?? [];
      const ratios = times.map((median, index) => median / (control[index] ?? median));
      const [low, mid, high] = [0, 0.5, 1].map((part) => quantile(ratios, part).toFixed(2));
      return [`${step}, ${kind}`, `${quantile(times, 0.5).toFixed(3)} ms`, `${mid} (${low}–${high})`];
    }),
  );
  return table([`Steps of a call that asks, ${rounds} rounds of ${requests}`, "median", "beside no notice"], rows);
}

/** Sends the notices of many requests to all providers, settles a fourth of them before their notices are sent and the others after it, and counts what was lost or came too late. */
async function measureLosses(requests: number): Promise<string> {
  const names = Object.keys(providers);
  const limits = { timeoutMs: 2_000, maxPerSecond: 100_000, maxWaiting: 2 * requests };
  const bench = await start(names, limits);
  const { accepted } = bench;
  const [began, cpu] = [performance.now(), process.cpuUsage()];
  const settledAt = new Map<string, number>();
  const settle = async (each: Awaited<ReturnType<typeof bench.request>>) => {
    await bench.settle(each);
    settledAt.set(each.id, performance.now());
  };
  const [early, late]: string[][] = [[], []];
  const waiting = [];
  for (let i = 0; i < requests; i++) {
    const asked = await bench.request();
    (i % 4 === 0 ? early : late)?.push(asked.id);
    if (i % 4 === 0) await settle(asked);
    else waiting.push(asked);
  }
  const living = ["works", "fails", "throttles"];
  const keysOf = (ids: readonly string[] = [], phase: "opened" | "settled") =>
    ids.flatMap((id) => living.map((name) => ({ id, name, key: `${name} msg_${id}_${phase}` })));
  const missing = (phase: "opened" | "settled") => keysOf(late, phase).filter(({ key }) => !accepted.has(key)).length;
  await bench.until(() => missing("opened"));
  for (const each of waiting) await settle(each);
  await bench.until(() => missing("settled"));
  await bench.until(async () => {
    const queues = await bench.store.notices.countNotices();
    return living.reduce((sum, name) => sum + (queues.get(name)?.waiting ?? 0), 0);
  });
  const seconds = ((performance.now() - began) / 1_000).toFixed(0);
  const { user, system } = process.cpuUsage(cpu);
  const cpuEach = ((user + system) / 1_000 / requests).toFixed(1);
  // An attempt may have begun while the settlement was being recorded.
  const tooLate = bench.begun.filter(
    ({ id, at }) => id.endsWith("_opened") && at > (settledAt.get(id.slice(4, -7)) ?? 0) + 50,
  );
  // A channel that announced a request gets its outcome, also if the answer came first.
  const untold = keysOf(early, "opened").filter(
    ({ id, name, key }) => accepted.has(key) && !accepted.has(`${name} msg_${id}_settled`),
  );
  const lost = missing("opened") + missing("settled") + untold.length;
  const memory = (process.memoryUsage().rss / 1_048_576).toFixed(0);
  const afterGone = bench.arrivals.filter(({ channel }) => channel === "gone").length;
  await bench.close();
  return `${(requests * names.length).toLocaleString("en")} notices of ${requests.toLocaleString("en")} requests, a fourth of them settled at once, and their outcomes, to providers that work, fail once (503), throttle once (429), are gone (410) and stall, in ${seconds} s, ${cpuEach} ms of CPU for each request, its providers included: ${lost} lost, ${tooLate.length} announced after the settlement, ${afterGone} attempts at the one that is gone, ${memory} MiB.`;
}
