import { BinaryReader } from "@bufbuild/protobuf/wire";
import { ToolService, WatchSessionResponseSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { cpuTime } from "../cpu-time.ts";
import { openSession } from "../echoes.ts";
import type { Http2Client, Stream } from "../http2-client.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { table } from "../report.ts";
import { startToolgate } from "../toolgate.ts";

/** Cost of delivering all events to all watchers. */
export interface Watchers {
  readonly watchers: number;
  readonly events: number;
  /** From the first call until the last watcher had the last event. */
  readonly seconds: number;
  /** µs of CPU time of the two replicas that are watched, for each event that a watcher got. */
  readonly cpuPerDelivery: number;
  /** The same of Redis. */
  readonly redisPerDelivery: number;
}

/** Calls at one replica while two others are watched; every watcher must see 1, 2, 3 … without a gap. */
export async function measureWatchers(
  processes: Processes,
  { watchers, events }: { watchers: number; events: number },
): Promise<Watchers> {
  const redis = await startRedis(processes);
  const [calling, ...watched] = [
    await startToolgate(processes, { name: "watch-a", store: redis.url }),
    await startToolgate(processes, { name: "watch-b", store: redis.url }),
    await startToolgate(processes, { name: "watch-c", store: redis.url }),
  ];
  const caller = calling.connect("caller");
  const sessionId = await openSession(caller);
  const clients: Http2Client[] = [];
  const watches: Watch[] = [];
  while (watches.length < watchers) {
    const client = watched[clients.length % watched.length]?.connect("watcher");
    if (client === undefined) break;
    clients.push(client);
    const free = Math.min(streamsPerConnection, watchers - watches.length);
    watches.push(...Array.from({ length: free }, () => watch(client, sessionId, events)));
  }
  await Promise.all(watches.map(({ begun }) => begun));

  const pids = watched.map(({ server }) => server.pid);
  const cpu = () => pids.reduce((sum, pid) => sum + cpuTime(pid), 0);
  const [cpuBefore, redisBefore, began] = [cpu(), cpuTime(redis.pid), performance.now()];
  await Promise.all([makeEvents(caller, sessionId, events), ...watches.map(({ seen }) => seen)]);
  const deliveries = watchers * events;
  const result = {
    watchers,
    events,
    seconds: (performance.now() - began) / 1_000,
    cpuPerDelivery: (cpu() - cpuBefore) / deliveries,
    redisPerDelivery: (cpuTime(redis.pid) - redisBefore) / deliveries,
  };
  for (const { stream } of watches) stream.cancel();
  for (const client of clients) client.close();
  await processes.stopAll();
  return result;
}

/** Duration, rate and cost per delivery. */
export function watchersReport(result: Watchers): string {
  const { watchers, events, seconds, cpuPerDelivery, redisPerDelivery } = result;
  const count = (value: number) => Math.round(value).toLocaleString("en");
  const head = [
    "watchers of one session, at two replicas",
    "events",
    "s",
    "deliveries/s",
    "replica CPU µs/delivery",
    "Redis CPU µs/delivery",
  ];
  const rate = count((watchers * events) / seconds);
  const row = [
    count(watchers),
    count(events),
    seconds.toFixed(1),
    rate,
    cpuPerDelivery.toFixed(1),
    redisPerDelivery.toFixed(2),
  ];
  return [table(head, [row]), "Every watcher saw every event once, in order."].join("\n\n");
}

interface Watch {
  readonly stream: Stream;
  /** The first message has arrived. */
  readonly begun: Promise<unknown>;
  /** It has seen all events. */
  readonly seen: Promise<unknown>;
}

function watch(client: Http2Client, sessionId: string, events: number): Watch {
  const [begun, seen] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  let last = 0;
  const stream = client.stream(ToolService.method.watchSession, { sessionId, snapshot: true }, (message) => {
    begun.resolve();
    const seq = sequenceOf(message);
    if (seq === undefined) return;
    if (seq !== last + 1) seen.reject(new Error(`a watcher got ${seq} after ${last}`));
    last = seq;
    if (last === events) seen.resolve();
  });
  const early = stream.ended.then(() => Promise.reject(new Error("a watcher's stream ended before it saw all")));
  early.catch(() => undefined); // After the last event it may end.
  return { stream, begun: Promise.race([begun.promise, early]), seen: Promise.race([seen.promise, early]) };
}

/** The number of the event in a WatchSessionResponse; nothing else is decoded. */
function sequenceOf(message: Buffer): number | undefined {
  const reader = new BinaryReader(message);
  while (reader.pos < reader.len) {
    const [field, wireType] = reader.tag();
    if (field === WatchSessionResponseSchema.field.event.number) {
      reader.uint32();
      reader.tag();
      return Number(reader.uint64());
    }
    reader.skip(wireType, field);
  }
  return undefined;
}

/** Makes calls of three events each. */
async function makeEvents(client: Http2Client, sessionId: string, events: number): Promise<void> {
  let made = 0;
  const caller = async () => {
    while (made < events) {
      made += 3;
      const call = { sessionId, callId: `call_${made}`, tool: "echo", input: { text: "watched" } };
      await client.connect(ToolService.method.callTool, call);
    }
  };
  await Promise.all(Array.from({ length: 16 }, caller));
}

/** As many as the service lets a client open. */
const streamsPerConnection = 100;
