/** `npm run bench`: measures the cost of a call here and at other servers, side by side on this machine. */
import { loadavg } from "node:os";
import { parseArgs } from "node:util";
import { measureAiSdk } from "./ai-sdk.ts";
import { measureAsks } from "./asks.ts";
import { type AttacksPlan, measureAttacks } from "./attacks/attacks.ts";
import { type ComparePlan, compareCommits } from "./commits/compare.ts";
import { type CostPlan, compareCosts } from "./commits/cost.ts";
import { ours, peers } from "./competitors.ts";
import { measureCopies } from "./copies.ts";
import { measureCorpora } from "./corpora.ts";
import { measureDurable } from "./durable/durable.ts";
import { prepareEngines } from "./durable/engines.ts";
import { type EventsPlan, measureEvents } from "./events.ts";
import { measureFiles } from "./files.ts";
import { type Goal, goalsTable } from "./goals.ts";
import { type HooksPlan, measureHooks } from "./hooks.ts";
import { type LinesPlan, measureLines } from "./lines.ts";
import { type LspPlan, measureLsp } from "./lsp.ts";
import { measureNotices, type NoticesPlan } from "./notices.ts";
import { writeSection } from "./page.ts";
import { measurePeers } from "./peers.ts";
import { measurePermission, type PermissionPlan } from "./permission.ts";
import { measurePipeline } from "./pipeline/pipeline.ts";
import { createProcesses, type Processes } from "./processes.ts";
import { profile } from "./profile.ts";
import { measureRepeats } from "./repeats.ts";
import { machineLine } from "./report.ts";
import { measureSandbox, type SandboxPlan } from "./sandbox/sandbox.ts";
import { measureScale, measureShared, type ScalePlan, type SharedPlan } from "./scale/scale.ts";
import { measureServiceStart, type ServiceStartPlan } from "./service-start.ts";
import { measureSimulation, type SimulatePlan } from "./simulate.ts";
import { measureStart } from "./start.ts";
import { measureTests } from "./tests.ts";
import { measureTools, type ToolsPlan } from "./tools/tools.ts";
import { measureWaits } from "./waits.ts";
import { measureCalls } from "./workers/calls.ts";
import { measureOtherReplica } from "./workers/other-replica.ts";
import { measureWorkers, type WorkersPlan } from "./workers/workers.ts";

const usage = `npm run bench                       tools, permission, peers, scale, then attacks: about 20 minutes
npm run bench -- --goals            only what has a goal, in one table: about half an hour
npm run bench -- --durable          only a call and a wait, beside Restate and DBOS on PostgreSQL: six minutes
npm run bench -- --peers            only an echo by each way to call us, beside other servers: seven minutes
npm run bench -- --tools            only the tools, beside the least that does the same
npm run bench -- --permission       only decisions and command lines: some seconds
npm run bench -- --scale            only replicas, permission requests, watchers and long sessions
npm run bench -- --attacks          only a healthy caller during attacks, beside bare node:http2: a minute
npm run bench -- --pipeline         only the pipeline around a function that does nothing, with a profile
npm run bench -- --files            only the files of src that one call and one answer run through
npm run bench -- --lines            only hostile command lines, and another caller beside them: half a minute
npm run bench -- --asks [FILE…]     only the number of command lines that ask, without the sandbox and behind it; of the lines in
                                    JSON files: asks by population with their reasons, and dangerous lines that got through
npm run bench -- --simulate [FILE…] only a candidate on 100,000 recorded decisions, about the lines of JSON files: a minute
npm run bench -- --repeats          only the lines that are asked again because another session edits the workspace: three minutes
npm run bench -- --sandbox          only the start of a command in the sandbox, and the index of names: a minute
npm run bench -- --start            only the CPU time of short command lines, and memory and starts of a service with 100,000 calls:
                                    two minutes
npm run bench -- --copies           only calls that wait for copies of Redis, beside those that do not: two minutes
npm run bench -- --ai-sdk           only runs of the AI SDK with one tool call, beside a local tool
npm run bench -- --hooks            only the hooks of Claude Code, beside an empty program and a bare HTTP exchange
npm run bench -- --events           only the events of opencode's API to 200 clients, beside a bare server: half a minute
npm run bench -- --notices          only notices to providers that work, fail, throttle, are gone and stall: two minutes
npm run bench -- --lsp              only questions and renames of language servers, beside a bare client and apply_patch
npm run bench -- --workers          only calls of workers, cancels, hostile schemas, idle workers, and a killed replica: about 9 minutes
npm run bench -- --waits            only waits of ten minutes with the real agents: about 14 minutes
npm run bench -- --tests            only npm test: files, tests, wall and CPU time
npm run bench -- --compare COMMIT   this checkout and a commit, interleaved; --rounds N (10): about 12 minutes
npm run bench -- --cost COMMIT      what a call and an answer cost on both stores, beside a commit and a control; --rounds N (10):
                                    about 10 minutes
npm run bench -- --profile NAME     CPU profile of one: ${[...ours, ...peers].map(({ key }) => key).join(", ")}

--write    also replaces the measured sections of bench/results.md
--quick    makes so few calls that only failures are meaningful`;

// What does more takes longer until all of it is compiled.
const full = { warmUp: 12_000, rounds: 5, ms: 1_500 };
const short = { warmUp: 100, rounds: 2, ms: 150 };

// Clients of the others are idle during a warm-up, and their connections are closed after two minutes.
const fullPeers = { warmUp: 4_000, rounds: 20, ms: 600 };
const fullDurable = { warmUp: 1_000, rounds: 12, ms: 1_200 };
const shortDurable = { warmUp: 20, rounds: 1, ms: 200 };

const fullCopies = { ...full, warmUp: 2_000 };

const fullShared: SharedPlan = {
  rates: { warmUp: 4_000, rounds: 20, ms: 800 },
  answers: { warmUp: 200, answers: 1_000 },
  asks: { sessions: 200, asksEach: 50, idleMs: 22_000 },
  lists: { few: 100, many: 10_000, rounds: 20, ms: 300 },
};
const shortShared: SharedPlan = {
  rates: short,
  answers: { warmUp: 5, answers: 20 },
  asks: { sessions: 8, asksEach: 10, idleMs: 500 },
  lists: { few: 20, many: 60, rounds: 2, ms: 50 },
};
const fullScale: ScalePlan = {
  ...fullShared,
  watchers: { watchers: 1_000, events: 9_999 },
  history: { warmUp: 4_000, earlier: [10, 1_000, 100_000], rounds: 9, calls: 1_000 },
};
const shortScale: ScalePlan = {
  ...shortShared,
  watchers: { watchers: 120, events: 99 },
  history: { warmUp: 300, earlier: [10, 100, 1_000], rounds: 2, calls: 100 },
};

const fullPipeline = { warmUp: 4_000, rounds: 5, calls: 4_000 };
const shortPipeline = { warmUp: 160, rounds: 2, calls: 160 };

const fullTools: ToolsPlan = { rounds: 15, files: 50_000, share: 1, outputBytes: 50_000_000 };
const shortTools: ToolsPlan = { rounds: 2, files: 1_000, share: 0.1, outputBytes: 5_000_000 };

const fullPermission: PermissionPlan = { decisions: 100_000, readings: 2_000 };
const shortPermission: PermissionPlan = { decisions: 1_000, readings: 20 };

const fullSimulate: SimulatePlan = { decisions: 100_000, lines: 1_200 };
const shortSimulate: SimulatePlan = { decisions: 500, lines: 50 };

const fullLines: LinesPlan = { rounds: 5, besideMs: 10_000 };
const shortLines: LinesPlan = { rounds: 1, besideMs: 300 };

const fullEvents: EventsPlan = { rounds: 20, calls: 50, clients: 200 };
const shortEvents: EventsPlan = { rounds: 1, calls: 5, clients: 10 };
const fullHooks: HooksPlan = { rounds: 20, programs: 10, requests: 200 };
const shortHooks: HooksPlan = { rounds: 1, programs: 1, requests: 10 };

const fullNotices: NoticesPlan = { delays: 100, rounds: 10, steps: 200, requests: 2_000 };
const shortNotices: NoticesPlan = { delays: 3, rounds: 1, steps: 5, requests: 20 };

const fullAiSdk = { rounds: 9, calls: 300 };
const shortAiSdk = { rounds: 2, calls: 10 };

const fullLsp: LspPlan = { rounds: 15, calls: 200 };
const shortLsp: LspPlan = { rounds: 2, calls: 10 };

const fullSandbox: SandboxPlan = { rounds: 41, files: 18_000, sizes: [1_000, 10_000, 50_000, 200_000] };
const shortSandbox: SandboxPlan = { rounds: 2, files: 500, sizes: [200, 1_000] };

const fullServiceStart: ServiceStartPlan = { requests: 1_000, calls: 100_000, starts: 9, restMs: 5_000 };
const shortServiceStart: ServiceStartPlan = { requests: 60, calls: 200, starts: 2, restMs: 100 };

const fullCompare: ComparePlan = { warmUp: 4_000, ms: 1_500, toolMs: 600, files: 2_000, asks: 400 };
const shortCompare: ComparePlan = { warmUp: 100, ms: 200, toolMs: 100, files: 200, asks: 40 };

const fullCost: CostPlan = { warmUp: 1_500, ms: 3_000 };
const shortCost: CostPlan = { warmUp: 50, ms: 200 };

const fullAttacks: AttacksPlan = { quietMs: 1_000, attackMs: 2_500, restMs: 1_000 };
const shortAttacks: AttacksPlan = { quietMs: 100, attackMs: 500, restMs: 200 };

const fullWorkers: WorkersPlan = {
  calls: { warmUp: 4_000, rounds: 20, ms: 400 },
  cancel: { calls: 100 },
  hostile: { warmUp: 4_000, ms: 3_000 },
  idle: { workers: 1_000, idleMs: 30_000, warmUp: 4_000, ms: 3_000 },
  adoption: { rounds: 5, calls: 1_000 },
};
const shortWorkers: WorkersPlan = {
  calls: short,
  cancel: { calls: 2 },
  hostile: { warmUp: 100, ms: 300 },
  idle: { workers: 60, idleMs: 500, warmUp: 100, ms: 300 },
  adoption: { rounds: 1, calls: 150 },
};

type Print = (text: string) => void;

/** Time after which a server seems to hang. */
const maxMinutes = 60;

const { values: options, positionals: files } = readOptions();
const { quick = false } = options;
if (options.help) print(usage);
else await run();

async function run(): Promise<void> {
  if (quick && options.write) fail("--quick measures too little to write; leave out one of the two");
  const processes = createProcesses();
  // A server that hangs must not hang the caller of the bench.
  const hangs = () => fail(`the bench did not end within ${maxMinutes} minutes; a server seems to hang`);
  setTimeout(hangs, maxMinutes * 60_000).unref();
  try {
    if (options.profile !== undefined) await profileOne(processes, options.profile);
    else for (const [name, measure] of selectSections()) await runSection(name, (show) => measure(processes, show));
  } finally {
    await processes.stopAll();
  }
}

type Section = readonly [
  name: string,
  measure: (processes: Processes, print: Print) => Promise<readonly Goal[]> | Promise<void>,
];

/** Lists what the options ask for; the usual sections if they name none. */
function selectSections(): Section[] {
  // The tools first: after decisions were measured, this process took 98 ms instead of 3 to start another one.
  const usual: Section[] = [
    ["tools", (processes, print) => measureTools(processes, quick ? shortTools : fullTools, print)],
    ["permission", (_, print) => measurePermission(quick ? shortPermission : fullPermission, print)],
    ["peers", (processes, print) => measurePeers(processes, quick ? short : fullPeers, print)],
    ["scale", (processes, print) => measureScale(processes, quick ? shortScale : fullScale, print)],
    ["attacks", (processes, print) => measureAttacks(processes, quick ? shortAttacks : fullAttacks, print)],
  ];
  const extra: Section[] = [
    ["pipeline", ({ folder }, print) => measurePipeline(folder, quick ? shortPipeline : fullPipeline, print)],
    ["files", ({ folder }, print) => measureFiles(folder, print)],
    ["compare", compare],
    ["cost", compareCost],
    ["goals", measureGoals],
    ["durable", (processes, print) => measureDurable(processes, quick ? shortDurable : fullDurable, print)],
    ["lines", (processes, print) => measureLines(processes, quick ? shortLines : fullLines, print)],
    ["asks", (processes, print) => (files.length > 0 ? measureCorpora : measureAsks)(processes, print, files)],
    [
      "simulate",
      (processes, print) => measureSimulation(processes, quick ? shortSimulate : fullSimulate, print, files),
    ],
    ["repeats", (processes, print) => measureRepeats(processes, { rounds: quick ? 1 : 5 }, print)],
    ["sandbox", ({ folder }, print) => measureSandbox(folder, quick ? shortSandbox : fullSandbox, print)],
    ["start", measureStarts],
    ["copies", (processes, print) => measureCopies(processes, quick ? short : fullCopies, print)],
    ["events", (processes, print) => measureEvents(processes, quick ? shortEvents : fullEvents, print)],
    ["ai-sdk", (processes, print) => measureAiSdk(processes, quick ? shortAiSdk : fullAiSdk, print)],
    ["hooks", (processes, print) => measureHooks(processes, quick ? shortHooks : fullHooks, print)],
    ["notices", (_, print) => measureNotices(quick ? shortNotices : fullNotices, print)],
    ["lsp", (processes, print) => measureLsp(processes, quick ? shortLsp : fullLsp, print)],
    ["workers", (processes, print) => measureWorkers(processes, quick ? shortWorkers : fullWorkers, print)],
    ["waits", (_, print) => measureWaits(print)],
    ["tests", (_, print) => measureTests(print)],
  ];
  const named: Readonly<Record<string, unknown>> = options;
  const chosen = [...usual, ...extra].filter(([name]) => named[name] !== undefined);
  return chosen.length > 0 ? chosen : usual;
}

/** Prints a section, under a line about the machine, and writes it to the page on request. */
async function runSection(name: string, measure: (print: Print) => ReturnType<Section[1]>): Promise<void> {
  const texts: string[] = [];
  const show = (text: string) => {
    texts.push(text);
    print(text);
  };
  show(machineLine(new Date()));
  const goals = await measure(show);
  if (goals !== undefined) show(goalsTable(goals));
  if (options.write) await writeSection(name, texts.join("\n\n"));
}

async function measureStarts(processes: Processes, print: Print): Promise<Goal[]> {
  const goals = measureStart(quick ? 2 : 20, print);
  return [...goals, ...(await measureServiceStart(processes, quick ? shortServiceStart : fullServiceStart, print))];
}

/** Measures all that has a goal; what the parts print beside their goals goes to the terminal only. */
async function measureGoals(processes: Processes): Promise<Goal[]> {
  // Before anything: the run ends where they are missing, and their part comes late.
  prepareEngines();
  const workers = quick ? shortWorkers.calls : fullWorkers.calls;
  const parts: (() => Promise<readonly Goal[]>)[] = [
    // First: a process that has measured much takes longer to start others.
    () => measureHooks(processes, quick ? shortHooks : fullHooks, print),
    () => measureStarts(processes, print),
    () => measureSandbox(processes.folder, quick ? shortSandbox : { ...fullSandbox, sizes: [] }, print),
    () => measurePeers(processes, quick ? short : fullPeers, print),
    () => measureDurable(processes, quick ? shortDurable : fullDurable, print),
    () => measureCalls(processes, workers, print, ["TypeScript"]),
    () => measureOtherReplica(processes, workers, print),
    () => measureShared(processes, quick ? shortShared : fullShared, print),
    () => measureEvents(processes, quick ? shortEvents : fullEvents, print),
  ];
  const goals: Goal[] = [];
  for (const part of parts) {
    const [load = 0] = loadavg();
    goals.push(...(await part()).map((goal) => ({ ...goal, load })));
  }
  return goals;
}

async function compare(processes: Processes, print: Print): Promise<void> {
  const plan = { ...(quick ? shortCompare : fullCompare), rounds: roundsOf() };
  await compareCommits(processes, options.compare ?? "HEAD", plan, print);
}

async function compareCost(processes: Processes, print: Print): Promise<void> {
  const plan = { ...(quick ? shortCost : fullCost), rounds: roundsOf() };
  await compareCosts(processes, options.cost ?? "HEAD", plan, print);
}

function roundsOf(): number {
  const rounds = Number(options.rounds ?? (quick ? 1 : 10));
  if (!Number.isInteger(rounds) || rounds < 1) fail("--rounds: give a whole number from 1 up");
  return rounds;
}

async function profileOne(processes: Processes, name: string): Promise<void> {
  const competitor = [...ours, ...peers].find(({ key }) => key === name);
  if (competitor === undefined) return fail(`--profile ${name}: there is no such competitor\n\n${usage}`);
  print(machineLine(new Date()));
  print(await profile(processes, competitor, quick ? short : full));
}

function readOptions() {
  try {
    const [flag, text] = [{ type: "boolean" }, { type: "string" }] as const;
    const sections = {
      tools: flag,
      permission: flag,
      attacks: flag,
      asks: flag,
      scale: flag,
      pipeline: flag,
      files: flag,
      lines: flag,
      simulate: flag,
      repeats: flag,
      sandbox: flag,
      start: flag,
      copies: flag,
      events: flag,
      hooks: flag,
      lsp: flag,
      notices: flag,
      "ai-sdk": flag,
      waits: flag,
      workers: flag,
      tests: flag,
      peers: flag,
      goals: flag,
      durable: flag,
    };
    const options = {
      ...sections,
      compare: text,
      cost: text,
      rounds: text,
      profile: text,
      quick: flag,
      write: flag,
      help: flag,
    };
    const read = parseArgs({ options, allowPositionals: true });
    if (read.positionals.length > 0 && !read.values.asks && !read.values.simulate)
      throw new Error("only --asks and --simulate take files");
    return read;
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
