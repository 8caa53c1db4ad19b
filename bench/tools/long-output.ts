import { readFileSync } from "node:fs";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { openSession } from "../echoes.ts";
import type { Http2Client } from "../http2-client.ts";
import type { Processes } from "../processes.ts";
import { target } from "../report.ts";
import { startToolgate } from "../toolgate.ts";

/** Measures the growth of the service while a command writes so many bytes, and checks that all of them can be read. */
export async function measureLongOutput(processes: Processes, bytes: number): Promise<string> {
  const { server, connect } = await startToolgate(processes, {
    name: "long-output",
    rules: 'bash = "allow"',
  });
  const client = connect("caller");
  const sessionId = await openSession(client);
  const run = (callId: string, size: number) => {
    const input = { command: `yes 0123456789abcde | head -c ${size}` };
    return client.connect(ToolService.method.callTool, { sessionId, callId, tool: "bash", input, waitMs: 60_000 });
  };
  // The first output of some size also loads and compiles code.
  await run("warm-up", bytes / 5);
  const before = residentBytes(server.pid);
  let peak = before;
  const timer = setInterval(() => {
    peak = Math.max(peak, residentBytes(server.pid));
  }, 10);
  const started = performance.now();
  const { part } = await run("long", bytes);
  const seconds = (performance.now() - started) / 1_000;
  clearInterval(timer);
  const state = part?.state;
  const path = state?.case === "completed" ? state.value.metadata?.outputPath : undefined;
  if (typeof path !== "string") throw new Error(`a long output was not stored: ${state?.case}`);
  const read = await readAll(client, sessionId, path);
  if (read !== bytes) throw new Error(`${read} of ${bytes} bytes could be read`);
  await processes.stopAll();
  const size = `${(bytes / 1_000_000).toLocaleString("en")} MB`;
  return `${target(`bash with ${size} of output (${seconds.toFixed(1)} s, all of it readable): the service grows by`, (peak - before) / 1_048_576, 16, "MiB", 1)}`;
}

function residentBytes(pid: number): number {
  const [, kilobytes = "0"] = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
  return Number(kilobytes) * 1_024;
}

const pattern = Buffer.from("0123456789abcde\n");

/** Reads an output piece by piece; each byte must be the one that was written. */
async function readAll(client: Http2Client, sessionId: string, output: string): Promise<number> {
  for (let at = 0; ; ) {
    const range = { case: "bytes", value: { offset: BigInt(at), limit: 1_048_576 } } as const;
    const { data, end } = await client.connect(ToolService.method.readToolOutput, { sessionId, output, range });
    const wrong = data.findIndex((byte, index) => byte !== pattern[(at + index) % pattern.length]);
    if (wrong !== -1) throw new Error(`byte ${at + wrong} of a long output is another one`);
    at += data.length;
    if (end) return at;
  }
}
