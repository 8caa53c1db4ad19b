/** `npm run bench`: what a call costs here and at others, side by side on this machine. */
import { parseArgs } from "node:util";
import { compare } from "./compare.ts";
import { ours, peers } from "./competitors.ts";
import { measurePermission, type PermissionPlan } from "./permission.ts";
import { measurePipeline } from "./pipeline/pipeline.ts";
import { createProcesses, type Processes } from "./processes.ts";
import { profile } from "./profile.ts";
import { machineLine, ratesTable, ratiosTable, targetsList } from "./report.ts";
import { measureScale, type ScalePlan } from "./scale/scale.ts";
import { measureTools, type ToolsPlan } from "./tools/tools.ts";

const usage = `npm run bench                       compare, then scale: about 20 minutes
npm run bench -- --scale            only replicas, asks, watchers and long sessions
npm run bench -- --pipeline         what the pipeline adds to a function that does nothing, and where that goes
npm run bench -- --permission       only decisions and command lines: some seconds
npm run bench -- --tools            only what the tools themselves take, beside the least that does the same
npm run bench -- --quick            the same with so few calls that only failures mean something
npm run bench -- --profile NAME     where the CPU time of one goes: ${[...ours, ...peers].map(({ key }) => key).join(", ")}`;

// What does more takes longer until all of it is compiled.
const full = { warmUp: 12_000, rounds: 5, ms: 1_500 };
const short = { warmUp: 300, rounds: 2, ms: 300 };

const fullScale: ScalePlan = {
  rates: { ...full, warmUp: 4_000 },
  answers: { warmUp: 200, answers: 1_000 },
  asks: { sessions: 200, asksEach: 50, idleMs: 22_000 },
  watchers: { watchers: 1_000, events: 9_999 },
  history: { warmUp: 4_000, earlier: [10, 1_000, 100_000], rounds: 9, calls: 1_000 },
};
const shortScale: ScalePlan = {
  rates: short,
  answers: { warmUp: 5, answers: 20 },
  asks: { sessions: 8, asksEach: 10, idleMs: 500 },
  watchers: { watchers: 120, events: 99 },
  history: { warmUp: 300, earlier: [10, 100, 1_000], rounds: 2, calls: 100 },
};

const fullPipeline = { warmUp: 4_000, rounds: 5, calls: 4_000 };
const shortPipeline = { warmUp: 160, rounds: 2, calls: 160 };

const fullTools: ToolsPlan = { rounds: 15, files: 50_000, share: 1, outputBytes: 50_000_000 };
const shortTools: ToolsPlan = { rounds: 2, files: 1_000, share: 0.1, outputBytes: 5_000_000 };

const fullPermission: PermissionPlan = { decisions: 100_000, readings: 2_000 };
const shortPermission: PermissionPlan = { decisions: 1_000, readings: 20 };

const { quick, scale, pipeline, permission, tools, profile: name, help } = readOptions();
if (help) print(usage);
else await run();

async function run(): Promise<void> {
  const processes = createProcesses();
  // A server that hangs must not hang whoever waits for the bench.
  setTimeout(() => fail("the bench did not end within 40 minutes; a server seems to hang"), 2_400_000).unref();
  try {
    if (pipeline) await measurePipelineAlone(processes);
    else if (name === undefined) await measureAll(processes);
    else await profileOne(processes, name);
  } finally {
    await processes.stopAll();
  }
}

async function measureAll(processes: Processes): Promise<void> {
  print(machineLine(new Date()));
  // The tools first: once decisions were measured, this process took 98 ms instead of 3 to start another one.
  if (tools || !(scale || permission)) await measureTools(processes, quick ? shortTools : fullTools, print);
  if (tools) return;
  if (permission || !scale) measurePermission(quick ? shortPermission : fullPermission, print);
  if (permission) return;
  if (!scale) await measurePeers(processes);
  await measureScale(processes, quick ? shortScale : fullScale, print);
}

async function measurePipelineAlone({ folder }: Processes): Promise<void> {
  print(machineLine(new Date()));
  await measurePipeline(folder, quick ? shortPipeline : fullPipeline, print);
}

async function measurePeers(processes: Processes): Promise<void> {
  const plan = quick ? short : full;
  const rounds = await compare(processes, plan);
  print(
    `Median (min–max) of ${plan.rounds} rounds of ${plan.ms / 1_000} s each: an echo of 1 KiB, 16 calls open at a time.`,
  );
  print(
    "Ours writes every call to SQLite on disk; the others keep nothing, but for those with SQLite, which keep one row a call. The rate of MCP is of another client (HTTP/1.1).",
  );
  print(ratesTable(rounds));
  print(ratiosTable(rounds));
  print(targetsList(rounds));
}

async function profileOne(processes: Processes, name: string): Promise<void> {
  const competitor = [...ours, ...peers].find(({ key }) => key === name);
  if (competitor === undefined) return fail(`--profile ${name}: there is no such competitor\n\n${usage}`);
  print(machineLine(new Date()));
  print(await profile(processes, competitor, quick ? short : full));
}

function readOptions() {
  try {
    const flag = { type: "boolean" } as const;
    const flags = { quick: flag, scale: flag, pipeline: flag, permission: flag, tools: flag, help: flag };
    const options = { ...flags, profile: { type: "string" } } as const;
    return parseArgs({ options }).values;
  } catch (error) {
    return fail(`${error instanceof Error ? error.message : error}\n\n${usage}`);
  }
}

function fail(message: string): never {
  process.stderr.write(`${message}\n`);
  process.exit(1);
}

function print(text: string): void {
  process.stdout.write(`${text}\n\n`);
}
