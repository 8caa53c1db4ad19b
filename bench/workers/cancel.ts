import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fromBinary } from "@bufbuild/protobuf";
import { ExecuteToolResponseSchema, ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { openSession } from "../echoes.ts";
import type { Http2Client } from "../http2-client.ts";
import type { Processes } from "../processes.ts";
import { percentile, table, target } from "../report.ts";
import { startToolgate } from "../toolgate.ts";
import { pythonCommand, startWorker, workerTokens } from "./programs.ts";

/** Size of the measurement of cancels. */
export interface CancelPlan {
  readonly calls: number;
}

const maxMs = 100;
const tools = {
  nap: "local tool",
  echo_nap: "Python, `async def` that sleeps",
  echo_grind: "Python, `def` that checks each ms",
};

/** Cancels calls while their bodies run: measures until the body has stopped, beside a body in the service's process. */
export async function measureCancel(
  processes: Processes,
  { calls }: CancelPlan,
  print: (text: string) => void,
): Promise<void> {
  const main = join(import.meta.dirname, "local-tool.ts");
  const rules = Object.keys(tools)
    .map((tool) => `${tool} = "allow"\n`)
    .join("");
  const service = await startToolgate(processes, { name: "cancel", main, rules, settings: workerTokens() });
  const program = join(import.meta.dirname, "nap.py");
  await startWorker(processes, pythonCommand(processes.folder, program), service.server.url);
  const client = service.connect("caller");
  const sessionId = await openSession(client);
  const file = join(processes.folder, "stopped");
  const times = new Map(Object.keys(tools).map((tool) => [tool, [] as number[]]));
  let count = 0;
  for (let index = 0; index < calls; index += 1) {
    for (const [tool, found] of times) {
      count += 1;
      found.push(await cancelOne(client, { sessionId, callId: `call_${count}`, tool }, () => stopTime(file, count)));
    }
  }
  client.close();
  await processes.stopAll();
  print(
    `${calls} calls of each are cancelled, one at a time, while the body runs; milliseconds from the request until the body has stopped.`,
  );
  const rows = Object.entries(tools).map(([tool, label]) => {
    const found = times.get(tool) ?? [];
    return [label, ...[0.5, 0.99].map((share) => percentile(found, share).toFixed(1)), Math.max(...found).toFixed(1)];
  });
  print(table(["", "p50 ms", "p99 ms", "longest, ms"], rows));
  const ofPython = Object.entries(tools).filter(([tool]) => tool !== "nap");
  print(
    ofPython
      .map(([tool, label]) =>
        target(`${label}: p99 until it has stopped`, percentile(times.get(tool) ?? [], 0.99), maxMs, "ms", 1),
      )
      .join("\n"),
  );
}

/** Makes a call, cancels it when its body writes, and resolves with the time until the body stopped. */
async function cancelOne(
  client: Http2Client,
  call: { readonly sessionId: string; readonly callId: string; readonly tool: string },
  stopped: () => Promise<number>,
): Promise<number> {
  const entered = Promise.withResolvers<void>();
  const stream = client.stream(ToolService.method.executeTool, { ...call, input: {} }, (bytes) => {
    const { event } = fromBinary(ExecuteToolResponseSchema, bytes);
    if (event?.event.case === "output") entered.resolve();
    if (event?.event.case === "part" && event.event.value.state.case === "error") entered.resolve();
  });
  await entered.promise;
  const { sessionId, callId } = call;
  const cancelledAt = Date.now();
  const cancelling = client.connect(ToolService.method.cancelTool, { sessionId, callId });
  const stoppedAt = await stopped();
  await Promise.all([cancelling, stream.ended]);
  return stoppedAt - cancelledAt;
}

/** Resolves with the time that a body wrote: that of a number. */
async function stopTime(file: string, number: number): Promise<number> {
  for (;;) {
    const lines = readTimes(file);
    const line = lines[number - 1];
    if (line !== undefined) return line;
    await delay(1);
  }
}

function readTimes(file: string): number[] {
  try {
    return readFileSync(file, "utf8").split("\n").slice(0, -1).map(Number);
  } catch {
    return [];
  }
}
