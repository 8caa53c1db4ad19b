import { setTimeout as sleep } from "node:timers/promises";
import { ToolService } from "../gen/opencode/tool/v1/tool_service_pb.ts";
import { cpuTime } from "./cpu-time.ts";
import type { Http2Client } from "./http2-client.ts";
import type { Processes } from "./processes.ts";
import { median, percentile, table } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

/** Sizes: rounds for each line, and time for which lines are sent beside another caller, in ms. */
export interface LinesPlan {
  rounds: number;
  besideMs: number;
}

/** Lengths of hostile lines, in bytes. */
const lengths = [64, 1_024, 8_192];

/** Measures the CPU time of hostile command lines by length, and the latency of another caller beside them. */
export async function measureLines(
  processes: Processes,
  { rounds, besideMs }: LinesPlan,
  print: (text: string) => void,
): Promise<void> {
  const { server, connect } = await startToolgate(processes, { name: "lines" });
  const [hostile, healthy] = [connect("caller"), connect("approver-1")];
  let sent = 0;
  // Each line is another one, since readings are stored; a principal that used up its time is refused at once.
  const send = (length: number) =>
    hostile
      .connect(ToolService.method.planTool, { tool: "bash", input: { command: hostileLine(length, ++sent) } })
      .then(() => true)
      .catch(() => false);
  const rows: string[][] = [];
  for (const length of [64, ...lengths]) {
    const times: number[] = [];
    for (let round = 0; round < rounds; round++) {
      const before = cpuTime(server.pid);
      const answers = await Promise.all(Array.from({ length: 10 }, () => send(length)));
      const planned = answers.filter(Boolean).length;
      if (planned > 0) times.push((cpuTime(server.pid) - before) / 1_000 / planned);
    }
    rows.push([length.toLocaleString("en"), times.length === 0 ? "–" : median(times).toFixed(1)]);
  }
  // The first one warms the code up.
  print(table(["bytes of a line of `$(`", "CPU ms of the service for each"], rows.slice(1)));
  const alone = await latencies(healthy, besideMs);
  const flood = new AbortController();
  const flooding = Promise.all(Array.from({ length: 16 }, () => keepSending(() => send(8_192), flood.signal)));
  const beside = await latencies(healthy, besideMs);
  flood.abort();
  await flooding;
  print(
    table(
      ["another caller", "median ms", "99 % ms"],
      [
        ["alone", ...spreadOf(alone)],
        ["beside 16 that send lines of 8,192 bytes", ...spreadOf(beside)],
      ],
    ),
  );
  hostile.close();
  healthy.close();
}

function spreadOf(times: readonly number[]): string[] {
  return [median(times), percentile(times, 0.99)].map((ms) => ms.toFixed(1));
}

/** Nested substitutions, as deep as lines are read, around words that differ from line to line. */
function hostileLine(length: number, n: number): string {
  const depth = Math.min(90, Math.floor(length / 8));
  const words = `x${n} `.repeat(length);
  return `${'"$('.repeat(depth)}${words}`.slice(0, length - 2 * depth) + ')"'.repeat(depth);
}

async function keepSending(send: () => Promise<unknown>, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) await send();
}

/** Latencies of a caller that plans a short command each 20 ms. */
async function latencies(client: Http2Client, ms: number): Promise<number[]> {
  const times: number[] = [];
  for (const end = performance.now() + ms; performance.now() < end; ) {
    const start = performance.now();
    await client.connect(ToolService.method.planTool, { tool: "bash", input: { command: "git status" } });
    times.push(performance.now() - start);
    await sleep(20);
  }
  return times;
}
