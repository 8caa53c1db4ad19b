import { join } from "node:path";
import { fromBinary } from "@bufbuild/protobuf";
import {
  StreamToolsRequestSchema,
  StreamToolsResponseSchema,
  ToolService,
} from "../gen/opencode/tool/v1/tool_service_pb.ts";
import { callByGrpc, executeByGrpc, openSession } from "./echoes.ts";
import { createHttp2Client, type Http2Client } from "./http2-client.ts";
import { type Echo, measure, type Sample } from "./load.ts";
import type { Processes } from "./processes.ts";
import { spread, table } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

/** Measures calls on one stream beside a request for each call and beside a bare stream that sends bytes back, in turn. */
export async function measureStreams(
  processes: Processes,
  { warmUp, rounds, ms }: { warmUp: number; rounds: number; ms: number },
  print: (text: string) => void,
): Promise<void> {
  const { server, connect } = await startToolgate(processes, { name: "streams" });
  const client = connect("caller");
  const bare = await processes.start([join(import.meta.dirname, "servers/http2-stream.ts"), processes.folder]);
  const ours = { pids: [server.pid] };
  const running = [
    { label: "StreamTools", ...ours, echo: callOnStream(client, await openSession(client)) },
    { label: "CallTool, gRPC", ...ours, echo: callByGrpc(client, await openSession(client)) },
    { label: "ExecuteTool, gRPC stream", ...ours, echo: executeByGrpc(client, await openSession(client)) },
    { label: "node:http2, the same bytes back", pids: [bare.pid], echo: bytesOnStream(createHttp2Client(bare.url)) },
  ].map((target) => ({ ...target, samples: [] as Sample[] }));
  for (const target of running) await measure(target, { calls: warmUp });
  for (let round = 0; round < rounds; round += 1) {
    for (const target of running) {
      await measure(target, { ms: ms / 2 });
      target.samples.push(await measure(target, { ms }));
    }
    running.reverse();
  }
  print(`Median (min–max) of ${rounds} rounds of ${ms / 1_000} s each: an echo of 1 KiB, 16 calls open at a time.`);
  const rows = running.map(({ label, samples }) => [
    label,
    spread(samples.map(({ callsPerSecond }) => callsPerSecond)),
    spread(samples.map(({ cpuPerCall }) => cpuPerCall)),
  ]);
  print(table(["", "calls/s", "server CPU µs/call"], rows));
  const [stream, ...others] = running.toSorted(
    (a, b) => Number(b.label === "StreamTools") - Number(a.label === "StreamTools"),
  );
  for (const { label, samples } of others) {
    const ratios = samples.map(
      ({ cpuPerCall }, round) => (stream?.samples[round]?.cpuPerCall ?? Number.NaN) / cpuPerCall,
    );
    print(`CPU of a call on the stream ÷ ${label}: ${spread(ratios, 2)}.`);
  }
}

/** Each call on one stream: its input in one piece, up to its end. */
function callOnStream(client: Http2Client, sessionId: string): Echo {
  const waiting = new Map<string, PromiseWithResolvers<string>>();
  const stream = client.duplex(ToolService.method.streamTools, (bytes) => {
    const { streamId, message } = fromBinary(StreamToolsResponseSchema, bytes);
    const call = waiting.get(streamId);
    if (message.case === "error") call?.reject(new Error(message.value.message));
    if (message.case !== "event" || message.value.event?.event.case !== "part") return;
    const { state } = message.value.event.event.value;
    if (state.case === "completed") call?.resolve(state.value.output);
    if (state.case === "error") call?.reject(new Error(state.value.error));
  });
  return numberedEcho(async (streamId, text) => {
    const call = Promise.withResolvers<string>();
    waiting.set(streamId, call);
    const open = { sessionId, messageId: "msg_bench", callId: `call_${streamId}`, tool: "echo" };
    stream.send(
      { streamId, message: { case: "open", value: open } },
      { streamId, message: { case: "inputDelta", value: { text: JSON.stringify({ text }) } } },
      { streamId, message: { case: "execute", value: {} } },
    );
    const output = await call.promise;
    waiting.delete(streamId);
    return output;
  });
}

/** The same bytes, to a server that sends them back. */
function bytesOnStream(client: Http2Client): Echo {
  const waiting = new Map<string, (text: string) => void>();
  const stream = client.duplex(ToolService.method.streamTools, (bytes) => {
    const { streamId, message } = fromBinary(StreamToolsRequestSchema, bytes);
    if (message.case === "inputDelta") waiting.get(streamId)?.(JSON.parse(message.value.text).text);
  });
  return numberedEcho(async (streamId, text) => {
    const { promise, resolve } = Promise.withResolvers<string>();
    waiting.set(streamId, resolve);
    stream.send({ streamId, message: { case: "inputDelta", value: { text: JSON.stringify({ text }) } } });
    const same = await promise;
    waiting.delete(streamId);
    return same;
  });
}

function numberedEcho(call: (streamId: string, text: string) => Promise<string>): Echo {
  let calls = 0;
  return async () => {
    calls += 1;
    const text = String(calls).padStart(8, "0").repeat(128);
    if ((await call(`s${calls}`, text)) !== text) throw new Error(`call ${calls} came back with another text`);
  };
}
