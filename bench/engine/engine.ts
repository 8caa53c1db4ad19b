import { execFile } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import * as z from "zod";
import { type Figure, figureRow } from "../commits/ratio.ts";
import {
  type AddFigure,
  createFigures,
  createSides,
  type InTurn,
  inTurns,
  openAsks,
  type Side,
} from "../commits/sides.ts";
import { peers } from "../competitors.ts";
import { callByConnect, callNamed, openSession } from "../echoes.ts";
import { inspectable, liveBytes } from "../heap.ts";
import { measure } from "../load.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { median, percentile, table, target } from "../report.ts";
import { measureAnswers } from "../scale/answer.ts";
import { createAskingFile } from "../scale/asking-file.ts";
import { measureOpenAsks } from "../scale/open-asks.ts";
import { startToolgate } from "../toolgate.ts";

/** Sizes of the measurement. */
export interface EnginePlan {
  /** Echoes before anything is measured, and milliseconds per figure and side. */
  readonly warmUp: number;
  readonly ms: number;
  /** Permission requests that are opened to measure their memory. */
  readonly asks: number;
  readonly answers: { readonly warmUp: number; readonly answers: number };
  /** The race takes minutes, so it runs in every `every`th round. */
  readonly race: {
    readonly sessions: number;
    readonly asksEach: number;
    readonly idleMs: number;
    readonly every: number;
  };
  readonly recovery: { readonly asks: number; readonly rounds: number };
}

type RoundPlan = EnginePlan & { readonly round: number };

/**
 * Measures what calls and waits cost, of this checkout beside a commit and the MCP SDK. Each round starts new processes and
 * measures each figure of all directly one after the other; the side that begins changes from round to round.
 */
export async function measureEngine(
  processes: Processes,
  commit: string,
  { rounds, ...plan }: EnginePlan & { readonly rounds: number },
  print: (text: string) => void,
): Promise<void> {
  const { head, other, sidesOf } = await createSides(processes, commit);
  const { add, figures } = createFigures();
  for (let round = 0; round < rounds; round += 1) {
    const sides = sidesOf(round);
    await measureEchoes(processes, sides, { ...plan, round }, add);
    await measureSteps(processes, sides, { ...plan, round }, add);
    for (const side of sides) await measureWaiting(processes, side, { ...plan, round }, add);
  }
  print(
    `Checkout at ${head} beside commit ${other}: medians of ${rounds} interleaved round${rounds === 1 ? "" : "s"}; the mean ratio with its 95 % interval.`,
  );
  print(table(["", "checkout", other, "ratio", "verdict"], figures().map(figureRow)));
  print(targetsOf(figures()).join("\n"));
}

/** Measures an echo that is durable in SQLite, beside the MCP SDK, which stores nothing. */
async function measureEchoes(
  processes: Processes,
  sides: readonly Side[],
  { warmUp, ms, asks, round }: RoundPlan,
  add: AddFigure,
): Promise<void> {
  const mcp = peers.find(({ key }) => key === "mcp");
  if (mcp === undefined) throw new Error("the MCP SDK is no competitor any more");
  const services = [];
  for (const side of sides) {
    const name = `engine-${side.name}-${round}`;
    const service = await startToolgate(processes, { name, main: side.main, flags: [inspectable] });
    const client = service.connect("caller");
    const echo = callByConnect(client, await openSession(client));
    services.push({ side, service, client, target: { pids: [service.server.pid], echo } });
  }
  const targets: (InTurn & { side?: Side })[] = [...services, { target: await mcp.start(processes) }];
  for (const { target } of targets) await measure(target, { calls: warmUp });
  const measured = await inTurns(targets, ms);
  const bare = measured.find(({ side }) => side === undefined)?.cpu ?? Number.NaN;
  for (const { side, cpu } of measured) {
    if (side === undefined) continue;
    add(labels.echo, "µs", side, cpu);
    add(labels.mcp, "×", side, cpu / bare);
  }
  for (const { side, service, client } of services) {
    const before = await liveBytes(service.server);
    await openAsks(client, await createAskingFile(service.workspace), asks);
    add(labels.sqliteAsk, "KiB", side, ((await liveBytes(service.server)) - before) / asks / 1_024);
  }
  await processes.stopAll();
}

/** Measures the CPU time of Redis per echo: of the built-in tool, and of one in a file, whose calls take two steps. */
async function measureSteps(
  processes: Processes,
  sides: readonly Side[],
  { warmUp, ms, round }: RoundPlan,
  add: AddFigure,
): Promise<void> {
  const services = [];
  for (const side of sides) {
    const redis = await startRedis(processes);
    const name = `steps-${side.name}-${round}`;
    await writeTwoSteps(join(processes.folder, name));
    const rules = `${twoSteps} = "allow"`;
    const service = await startToolgate(processes, { name, main: side.main, store: redis.url, rules });
    const client = service.connect("caller");
    services.push({ side, client, pids: [service.server.pid], also: redis.pid });
  }
  for (const [tool, label] of [
    ["echo", labels.once],
    [twoSteps, labels.twice],
  ] as const) {
    const targets = [];
    for (const { client, pids, ...rest } of services) {
      const echo = callNamed(tool)(client, await openSession(client));
      targets.push({ ...rest, target: { pids, echo } });
    }
    for (const { target } of targets) await measure(target, { calls: warmUp });
    for (const { side, cpu, also } of await inTurns(targets, ms)) {
      add(`${label}, CPU of Redis`, "µs", side, also);
      add(`${label}, CPU of the replica`, "µs", side, cpu);
    }
  }
  await processes.stopAll();
}

/** Measures what waits for approvers: answers, a race of replies, and a round of recovery. */
async function measureWaiting(
  processes: Processes,
  side: Side,
  { answers, race, recovery, round }: RoundPlan,
  add: AddFigure,
): Promise<void> {
  const { main } = side;
  const { running, floor } = await measureAnswers(processes, {
    ...answers,
    main,
    name: `answer-${side.name}-${round}`,
  });
  add(labels.answer, "×", side, percentile(running, 0.5) / percentile(floor, 0.5));
  if (round % race.every === 0) {
    const asked = await measureOpenAsks(processes, { ...race, main, name: `race-${side.name}-${round}` });
    add(labels.race, "s", side, asked.replySeconds);
    add(labels.redisAsk, "KiB", side, asked.heap / 1_024);
  }
  const args = [join(import.meta.dirname, "recovery.ts"), join(main, "../.."), recovery.asks, recovery.rounds].map(
    String,
  );
  const { stdout } = await promisify(execFile)(process.execPath, args);
  add(labels.recovery, "ms", side, recovered.parse(JSON.parse(stdout)).ms);
}

const recovered = z.object({ ms: z.number() });

/** Writes a tool that returns its text; its calls are recorded before they run. */
async function writeTwoSteps(folder: string): Promise<void> {
  await mkdir(join(folder, "tool"), { recursive: true });
  await writeFile(
    join(folder, "tool", `${twoSteps}.ts`),
    `export default {
  description: "Return the given text unchanged.",
  args: { text: { type: "string" } },
  execute: async ({ text }) => text,
};
`,
  );
}

const twoSteps = "repeat";

const labels = {
  echo: "durable echo on SQLite, CPU",
  mcp: "durable echo on SQLite ÷ MCP SDK",
  sqliteAsk: "memory per open ask on SQLite",
  once: "echo on Redis",
  twice: "echo on Redis that is recorded before it runs",
  answer: "answer at one replica → running at another ÷ the floor, p50",
  race: "20,000 racing replies",
  redisAsk: "memory of the replicas per open ask on Redis",
  recovery: "renewals and recovery with 5,000 open asks, CPU",
};

/** Compares the medians with their targets; a missed one is reported and fails nothing. */
function targetsOf(figures: readonly Figure[]): string[] {
  const limits: readonly (readonly [label: string, limit: number])[] = [
    [labels.mcp, 1],
    [`${labels.once}, CPU of Redis`, 160],
    [`${labels.twice}, CPU of Redis`, 230],
    [labels.redisAsk, 1],
    [labels.sqliteAsk, 5],
    [labels.answer, 2.2],
    [labels.race, 12],
    [labels.recovery, 15],
  ];
  return limits.flatMap(([label, limit]) => {
    const figure = figures.find((one) => one.label === label);
    return figure === undefined ? [] : [target(label, median(figure.ours), limit, figure.unit)];
  });
}
