import { rm } from "node:fs/promises";
import { openTestWorkspace } from "../../src/testing.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";
import type { Processes } from "../processes.ts";
import { median, spread, table, target } from "../report.ts";
import { measureLongOutput } from "./long-output.ts";
import { makePairs, type Pair } from "./pairs.ts";

/** Sizes of the measurements. */
export interface ToolsPlan {
  readonly rounds: number;
  /** Files of the tree that is searched. */
  readonly files: number;
  /** Share of the usual number of calls. */
  readonly share: number;
  readonly outputBytes: number;
}

/** Measures tools beside the least that does the same, and the memory that a long output needs. */
export async function measureTools(
  processes: Processes,
  { rounds, files, share, outputBytes }: ToolsPlan,
  print: (report: string) => void,
): Promise<void> {
  const site = await openTestWorkspace();
  const supervisor = createSupervisor({ replicaId: `bench-${process.pid}`, leaseMs: 15_000 });
  const pipes = createPipes();
  try {
    const measured: Measured[] = [];
    for (const pair of await makePairs(site, { supervisor, pipes, files })) {
      await pair.check?.();
      measured.push({ pair, samples: await measurePair(pair, { rounds, share }) });
    }
    print(
      `Tools, in the process, a tree of ${files.toLocaleString("en")} files: median (min–max) of ${rounds} rounds.`,
    );
    print(report(measured));
    print(targets(measured));
  } finally {
    await supervisor.close();
    await pipes.close();
    await rm(site.directory, { recursive: true, force: true });
    await site.remove();
  }
  print(await measureLongOutput(processes, outputBytes));
}

/** ms a call, of one round. */
interface Sample {
  ours: number;
  bare: number;
}

interface Measured {
  pair: Pair;
  samples: Sample[];
}

/** Both in turn, in each round in the other order than in the one before; the first round is not counted. */
async function measurePair(pair: Pair, { rounds, share }: { rounds: number; share: number }): Promise<Sample[]> {
  const times = Math.max(2, Math.round(pair.times * share));
  const samples: Sample[] = [];
  for (let round = 0; round <= rounds; round += 1) {
    const first = round % 2 === 0 ? await time(pair.ours, times) : undefined;
    const bare = await time(pair.bare, times);
    const ours = first ?? (await time(pair.ours, times));
    samples.push({ ours, bare });
  }
  return samples.slice(1);
}

async function time(work: () => unknown, times: number): Promise<number> {
  const before = performance.now();
  for (let turn = 0; turn < times; turn += 1) await work();
  return (performance.now() - before) / times;
}

const ratiosOf = (samples: readonly Sample[]) => samples.map(({ ours, bare }) => ours / bare);

function report(measured: readonly Measured[]): string {
  const rows = measured.map(({ pair, samples }) => [
    `${pair.what} beside ${pair.bareWhat}`,
    spread(
      samples.map(({ ours }) => ours),
      2,
    ),
    spread(
      samples.map(({ bare }) => bare),
      2,
    ),
    spread(ratiosOf(samples), 2),
  ]);
  return table(["", "ours, ms", "bare, ms", "ours ÷ bare"], rows);
}

function targets(measured: readonly Measured[]): string {
  return measured
    .flatMap(({ pair: { what, limit }, samples }) =>
      limit === undefined ? [] : [target(what, median(ratiosOf(samples)), limit, "×")],
    )
    .join("\n");
}
