import { readdir, readFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import * as z from "zod";
import type { Competitor } from "./competitors.ts";
import { measure } from "./load.ts";
import type { Processes } from "./processes.ts";
import { table } from "./report.ts";

/** Profiles a competitor while it is called, without its start and warm-up. */
export async function profile(
  processes: Processes,
  { start }: Competitor,
  { warmUp, rounds, ms }: { warmUp: number; rounds: number; ms: number },
): Promise<string> {
  const folder = join(processes.folder, "profile");
  const target = await start(processes, ["--cpu-prof", "--cpu-prof-dir", folder, "--cpu-prof-interval", "250"]);
  await measure(target, { calls: warmUp });
  const began = monotonicMicros();
  const { cpuPerCall } = await measure(target, { ms: rounds * ms });
  const ended = monotonicMicros();
  await processes.stopAll();

  return [
    `CPU µs per call while profiled: ${cpuPerCall.toFixed(0)}. SQLite has no lines in it: its time, and its waits for the disk, count for the function that calls it.`,
    await profileTables(folder, began, ended, 25),
  ].join("\n\n");
}

/** Tables of self time between two moments of the monotonic clock (µs), from a profile in the folder. */
export async function profileTables(folder: string, began: number, ended: number, count: number): Promise<string> {
  const costs = selfTimes(await readProfile(folder), began, ended);
  return [
    shares("self time by function", costs, ({ name, module }) => `\`${name}\` ${module}`, count),
    shares("self time by module", costs, ({ module }) => module, count),
  ].join("\n\n");
}

/** The time that one place of the call tree took itself. */
interface Cost {
  name: string;
  module: string;
  micros: number;
}

const cpuProfile = z.object({
  nodes: z.array(
    z.object({
      id: z.number(),
      callFrame: z.object({ functionName: z.string(), url: z.string(), lineNumber: z.number() }),
      children: z.array(z.number()).default([]),
    }),
  ),
  startTime: z.number(),
  samples: z.array(z.number()),
  timeDeltas: z.array(z.number()),
});

type CpuProfile = z.output<typeof cpuProfile>;

/** A server's main thread is the one whose profile has most samples. */
async function readProfile(folder: string): Promise<CpuProfile> {
  const texts = await Promise.all((await readdir(folder)).map((file) => readFile(join(folder, file), "utf8")));
  const [longest] = texts.toSorted((a, b) => b.length - a.length);
  if (longest === undefined) throw new Error("the server wrote no profile: it ended before SIGTERM");
  return cpuProfile.parse(JSON.parse(longest));
}

function selfTimes({ nodes, startTime, samples, timeDeltas }: CpuProfile, began: number, ended: number): Cost[] {
  const places = new Map(nodes.map(({ id, callFrame }) => [id, { ...placeOf(callFrame), micros: 0 }]));
  for (const { id, callFrame, children } of nodes) {
    for (const child of children) inherit(places.get(child), callFrame.url);
    if (callFrame.functionName === "(idle)") places.delete(id);
  }
  let time = startTime;
  for (const [index, id] of samples.entries()) {
    time += timeDeltas[index] ?? 0;
    const place = places.get(id);
    if (place !== undefined && time >= began && time < ended) place.micros += timeDeltas[index + 1] ?? 0;
  }
  return [...places.values()];
}

function placeOf({ functionName, url, lineNumber }: CpuProfile["nodes"][number]["callFrame"]) {
  const name = functionName || "(anonymous)";
  if (url === "") return { name, module: "" };
  return { name: `${name}:${lineNumber + 1}`, module: moduleOf(url) };
}

/** Native code has no file: it counts for its caller. */
function inherit(place: Cost | undefined, callerUrl: string): void {
  if (place?.module !== "") return;
  place.module = place.name.startsWith("(") ? place.name : `native, from ${moduleOf(callerUrl)}`;
}

function moduleOf(url: string): string {
  if (!url.startsWith("file:")) return url || "native code";
  const path = relative(join(import.meta.dirname, ".."), fileURLToPath(url));
  return /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? path;
}

function shares(title: string, costs: readonly Cost[], nameOf: (cost: Cost) => string, count: number): string {
  const total = costs.reduce((sum, { micros }) => sum + micros, 0);
  const byName = Object.entries(Object.groupBy(costs, nameOf)).map(([name, group = []]) => {
    const micros = group.reduce((sum, { micros }) => sum + micros, 0);
    return { name, micros };
  });
  const rows = byName
    .toSorted((a, b) => b.micros - a.micros)
    .slice(0, count)
    .map(({ name, micros }) => [name, `${((100 * micros) / total).toFixed(1)} %`]);
  return table([title, "share"], rows);
}

/** The clock of V8's profiles: it is the same in every process of a machine. */
function monotonicMicros(): number {
  return Number(process.hrtime.bigint() / 1_000n);
}
