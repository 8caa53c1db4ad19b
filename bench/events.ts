import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { Agent, get } from "node:http";
import { join } from "node:path";
import { cpuTime } from "./cpu-time.ts";
import type { Goal } from "./goals.ts";
import type { Processes } from "./processes.ts";
import { spread, table } from "./report.ts";
import { ratios } from "./rounds.ts";
import { startToolgate } from "./toolgate.ts";

/** Sizes of the measurement. */
export interface EventsPlan {
  readonly rounds: number;
  /** Calls of each round, one after the other. */
  readonly calls: number;
  readonly clients: number;
}

/** A server with its clients. */
interface Streaming {
  readonly pid: number;
  /** Makes one call, or sends what one emits. */
  send(): Promise<void>;
  readonly clients: EventClients;
}

/** Open streams of events. */
interface EventClients {
  /** Resolves when every stream has got as many ends of calls as this. */
  ended(count: number): Promise<void>;
  /** Text of the first client since the last time that this was called. */
  take(): string;
  close(): void;
}

const callerHeaders = { authorization: "Bearer caller-token-for-tests" };
/** The last event of a call. */
const lastEvent = '"type":"session.idle"';

/** Measures `/event` with many clients, beside a bare server that sends them the same bytes. */
export async function measureEvents(
  processes: Processes,
  { rounds, calls, clients }: EventsPlan,
  print: (text: string) => void,
): Promise<Goal[]> {
  const { server } = await startToolgate(processes, { name: "events", rules: "\n[rest]\nenabled = true" });
  const call = await callsOf(server.url);
  const alone: number[] = [];
  for (let round = 0; round <= rounds; round += 1) alone.push(await cpuOf(server.pid, calls, call));
  const streaming: Streaming = { pid: server.pid, send: call, clients: await openClients(server.url, clients) };
  streaming.clients.take();
  await call();
  await streaming.clients.ended(1);
  const sent = streaming.clients.take();
  const copying = async (): Promise<Streaming> => {
    const { pid, url } = await processes.start([join(import.meta.dirname, "servers/events.ts")]);
    const send = async () => void (await (await fetch(url, { method: "POST", body: sent })).text());
    return { pid, send, clients: await openClients(url, clients) };
  };
  const samples = [
    { each: streaming, count: 1, micros: [] as number[] },
    ...[await copying(), await copying()].map((each) => ({ each, count: 0, micros: [] as number[] })),
  ];
  for (let round = 0; round <= rounds; round += 1) {
    for (const sample of samples) {
      const { each, micros } = sample;
      const cpu = await cpuOf(each.pid, calls, async () => {
        await each.send();
        sample.count += 1;
        await each.clients.ended(sample.count);
      });
      micros.push(cpu);
    }
  }
  for (const { each } of samples) each.clients.close();
  await processes.stopAll();
  // The first round warms up.
  const [ours = [], theirs = [], again = [], without = []] = [...samples.map(({ micros }) => micros), alone].map(
    (micros) => micros.slice(1),
  );
  const streamed = ours.map((micros, round) => micros - (without[round] ?? 0));
  const row = (label: string, values: readonly number[]) => [label, spread(values)];
  print(
    `Median (min–max) of ${rounds} rounds of ${calls} calls: an echo, of which ${clients} clients get all events, ${sent.length} bytes each.`,
  );
  print(
    table(
      ["", "server CPU µs/call"],
      [
        row("Toolgate, the call alone", without),
        row(`Toolgate, with ${clients} clients of \`/event\``, ours),
        row("node:http, the same bytes", theirs),
      ],
    ),
  );
  return [
    {
      ...{ figure: `events of a call to ${clients} clients ÷ node:http, CPU`, limit: 2, unit: "×" },
      ...{ values: ratios(streamed, theirs), control: ratios(again, theirs) },
    },
  ];
}

/** Returns the CPU time of a server for each of some requests, in µs. */
async function cpuOf(pid: number, times: number, send: () => Promise<void>): Promise<number> {
  const before = cpuTime(pid);
  for (let index = 0; index < times; index += 1) await send();
  return (cpuTime(pid) - before) / times;
}

/** Returns the function that makes one call in a session. */
async function callsOf(url: string): Promise<() => Promise<void>> {
  const headers = { ...callerHeaders, "content-type": "application/json" };
  const post = async (path: string, body: object) =>
    JSON.parse(await (await fetch(`${url}${path}`, { method: "POST", headers, body: JSON.stringify(body) })).text());
  const { id: sessionId } = await post("/session", {});
  return async () => {
    const request = { sessionId, callId: randomUUID(), tool: "echo", input: { text: "hello" } };
    const { part } = await post("/opencode.tool.v1.ToolService/CallTool", request);
    if (part?.completed === undefined) throw new Error(`a call ended otherwise: ${JSON.stringify(part)}`);
  };
}

async function openClients(url: string, count: number): Promise<EventClients> {
  const agent = new Agent({ maxSockets: count });
  const ends = new Array<number>(count).fill(0);
  const rest = new Array<string>(count).fill("");
  let first = "";
  let check = () => {};
  const requests = await Promise.all(
    ends.map(async (_, index) => {
      const request = get(`${url}/event`, { agent, headers: callerHeaders });
      const [response] = await once(request, "response");
      const opened = once(response, "data");
      response.setEncoding("utf8").on("data", (chunk: string) => {
        if (index === 0) first += chunk;
        const text = `${rest[index]}${chunk}`;
        const parts = text.split(lastEvent);
        ends[index] = (ends[index] ?? 0) + parts.length - 1;
        rest[index] = parts.at(-1)?.slice(-lastEvent.length) ?? "";
        check();
      });
      response.on("error", () => undefined);
      await opened;
      return request;
    }),
  );
  return {
    ended: (wanted) =>
      new Promise((resolve) => {
        check = () => {
          if (ends.every((end) => end >= wanted)) resolve();
        };
        check();
      }),
    take() {
      const taken = first;
      first = "";
      return taken;
    },
    close() {
      for (const request of requests) request.destroy();
    },
  };
}
