import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { grpcNamed, openSession } from "../echoes.ts";
import { measure, timesOf } from "../load.ts";
import type { Processes } from "../processes.ts";
import { percentile, table, target } from "../report.ts";
import { startToolgate } from "../toolgate.ts";
import { workerTokens } from "./programs.ts";

/** Size of the measurement of hostile schemas. */
export interface HostilePlan {
  readonly warmUp: number;
  readonly ms: number;
}

const maxMs = 50;
const kinds = {
  ordinary: "an ordinary one, which is registered",
  quantifier: "nested quantifier `(a?){1000}a{1000}`",
  depth: "1,000 levels",
  size: "10 MB",
};

/** Connects workers with hostile schemas: measures until they are refused, and a caller beside them. */
export async function measureHostile(
  processes: Processes,
  { warmUp, ms }: HostilePlan,
  print: (text: string) => void,
): Promise<void> {
  const service = await startToolgate(processes, { name: "hostile", settings: workerTokens() });
  const client = service.connect("caller");
  const echo = grpcNamed("echo")(client, await openSession(client));
  await measure({ pids: [], echo }, { calls: warmUp });
  const beside = (times: readonly number[]) => [0.5, 0.99].map((share) => percentile(times, share).toFixed(2));
  const rows = [["none", "", "", ...beside(await timesOf(echo, ms))]];
  const longest: string[] = [];
  for (const [kind, label] of Object.entries(kinds)) {
    const sender = join(import.meta.dirname, "hostile-hello.ts");
    const sending = promisify(execFile)(process.execPath, [sender, service.server.url, kind, String(ms)]);
    const called = await timesOf(echo, ms);
    const times: number[] = JSON.parse((await sending).stdout);
    rows.push([label, percentile(times, 0.5).toFixed(1), Math.max(...times).toFixed(1), ...beside(called)]);
    if (kind !== "ordinary")
      longest.push(target(`${label}: longest until it is refused`, Math.max(...times), maxMs, "ms", 1));
  }
  client.close();
  await processes.stopAll();
  print(
    `A worker connects each 20 ms, for ${ms / 1_000} s, from another process; the time includes the connection. The caller echoes beside it, one call at a time.`,
  );
  print(
    table(["schema of the worker's tool", "answered, p50 ms", "longest, ms", "caller, p50 ms", "caller, p99 ms"], rows),
  );
  print(longest.join("\n"));
}
