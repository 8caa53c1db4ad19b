import { spawn, spawnSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import type { Goal } from "./goals.ts";
import type { Processes } from "./processes.ts";
import { spread, table } from "./report.ts";
import { ratios } from "./rounds.ts";
import { startToolgate } from "./toolgate.ts";

/** Sizes of the measurement. */
export interface HooksPlan {
  readonly rounds: number;
  /** Programs that each round runs, one after the other. */
  readonly programs: number;
  /** Requests that each round sends, one after the other. */
  readonly requests: number;
}

/** A way to ask, and the least that does the same without a decision. */
interface Pair {
  readonly label: string;
  readonly bareLabel: string;
  readonly times: number;
  /** The most that ours may take, as a multiple of the other. */
  readonly limit?: number;
  ours(): Promise<void>;
  bare(): Promise<void>;
}

const root = join(import.meta.dirname, "..");
const token = "host-token-for-tests";

/** Measures the hooks of Claude Code for a use that rules allow, beside an empty program and a bare HTTP exchange, in turn. */
export async function measureHooks(
  processes: Processes,
  { rounds, programs, requests }: HooksPlan,
  print: (text: string) => void,
): Promise<Goal[]> {
  const { status } = spawnSync(process.execPath, ["build/package.ts"], {
    cwd: root,
    stdio: ["ignore", "ignore", "inherit"],
  });
  if (status !== 0) throw new Error(`build/package.ts ended with ${status}`);
  const rows: string[][] = [];
  const goals: Goal[] = [];
  for (const { label, bareLabel, times, limit, ours, bare } of await makePairs(processes, { programs, requests })) {
    const samples = [ours, bare, bare].map((work) => ({ work, ms: [] as number[] }));
    // The first round warms up.
    for (let round = -1; round < rounds; round += 1)
      for (const { work, ms } of round % 2 === 0 ? samples : samples.toReversed()) {
        const mean = await time(work, times);
        if (round >= 0) ms.push(mean);
      }
    const [measured = [], least = [], again = []] = samples.map(({ ms }) => ms);
    const values = ratios(measured, least);
    rows.push([`${label} beside ${bareLabel}`, spread(measured, 2), spread(least, 2), spread(values, 2)]);
    if (limit !== undefined)
      goals.push({ figure: `${label} ÷ ${bareLabel}`, limit, unit: "×", values, control: ratios(again, least) });
  }
  await processes.stopAll();
  print(
    `Median (min–max) of ${rounds} rounds: one PreToolUse at a time, of a web search that a rule allows; the service stores each in SQLite on disk.`,
  );
  print(table(["", "ours, ms", "bare, ms", "ours ÷ bare"], rows));
  return goals;
}

async function makePairs(processes: Processes, { programs, requests }: Omit<HooksPlan, "rounds">): Promise<Pair[]> {
  const { server, workspace } = await startToolgate(processes, { name: "hooks", rules: 'websearch = "allow"' });
  const bare = await processes.start([join(import.meta.dirname, "servers/http.ts")]);
  const tokenFile = join(processes.folder, "host-token");
  await writeFile(tokenFile, token, { mode: 0o600 });
  const flags = ["--server", server.url, "--token-file", tokenFile, "--uid", `${process.getuid?.()}`];
  let uses = 0;
  // The uses are not reported, and a session of an agent has only some that run.
  const hook = () =>
    JSON.stringify({
      ...{ hook_event_name: "PreToolUse", session_id: `bench-${Math.floor(uses++ / 10)}`, cwd: workspace },
      ...{ tool_name: "WebSearch", tool_input: { query: "toolgate" }, tool_use_id: randomUUID() },
    });
  return [
    {
      label: "`hook.cjs claude`, a process",
      bareLabel: "`node -e 0`",
      ...{ times: programs, limit: 1.7 },
      ours: () => run(processes.folder, ["dist/hook.cjs", "claude", ...flags], hook()),
      bare: () => run(processes.folder, ["-e", "0"]),
    },
    {
      label: "`POST /hooks/claude`",
      bareLabel: "a bare exchange over node:http",
      times: requests,
      ours: () => post(`${server.url}/hooks/claude`, hook()),
      bare: () => post(bare.url, hook()),
    },
  ];
}

/** Runs node to its end; a hook must allow its input. */
async function run(home: string, args: readonly string[], input?: string): Promise<void> {
  const child = spawn(process.execPath, args, {
    cwd: root,
    env: { HOME: home },
    stdio: ["pipe", "pipe", "inherit"],
  });
  child.stdin.end(input);
  const [printed] = await Promise.all([text(child.stdout), once(child, "close")]);
  if (input !== undefined) checkAllowed(printed);
}

async function post(url: string, body: string): Promise<void> {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  checkAllowed(await (await fetch(url, { method: "POST", headers, body })).text());
}

function checkAllowed(answer: string): void {
  if (!answer.includes('"permissionDecision":"allow"')) throw new Error(`the hook did not allow the use: ${answer}`);
}

async function time(work: () => Promise<void>, times: number): Promise<number> {
  const before = performance.now();
  for (let turn = 0; turn < times; turn += 1) await work();
  return (performance.now() - before) / times;
}
