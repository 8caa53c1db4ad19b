import {
  type Source,
  SourceAcceptance,
  SourceKind,
  SourceState,
} from "../../gen/opencode/tool/v1/source_service_pb.ts";
import type { WorkerProcess } from "../../gen/opencode/tool/v1/worker_service_pb.ts";

/** One metric with its samples, for the text format of Prometheus. */
export interface Family {
  name: string;
  type: "counter" | "gauge" | "histogram";
  help: string;
  /** Text after the name, one entry per line: labels in braces if there are any, and the value. */
  samples: readonly string[];
}

/** Returns metrics in the text format of Prometheus. */
export function formatFamilies(families: readonly Family[]): string {
  return families
    .flatMap(({ name, type, help, samples }) => [
      `# HELP ${name} ${help}`,
      `# TYPE ${name} ${type}`,
      ...samples.map((sample) => `${name}${sample}`),
    ])
    .map((line) => `${line}\n`)
    .join("");
}

/** Builds a metric without labels. */
export function single(name: string, type: "counter" | "gauge", help: string, value: number): Family {
  return { name, type, help, samples: [` ${value}`] };
}

/** Returns the metrics of the sources of tools. */
export function sourceMetrics(sources: readonly Source[]): string {
  if (sources.length === 0) return "";
  const family = (name: string, type: Family["type"], help: string, measure: (source: Source) => number): Family => ({
    ...{ name, type, help },
    samples: sources.map((source) => `{${labelsOf(source)}} ${measure(source)}`),
  });
  return formatFamilies([
    family(
      "toolgate_source_ready",
      "gauge",
      "1 if the source of tools is connected, or its process runs.",
      ({ state }) => (state === SourceState.READY ? 1 : 0),
    ),
    family("toolgate_source_restarts_total", "counter", "Connections after the first one.", ({ restarts }) => restarts),
    family("toolgate_source_memory_bytes", "gauge", "Resident memory of the processes.", ({ memoryBytes }) =>
      Number(memoryBytes),
    ),
    family(
      "toolgate_source_unaccepted_tools",
      "gauge",
      "Tools that are new or changed and not offered.",
      countUnaccepted,
    ),
  ]);
}

/** Names a source: a tool process by its path and its workspace. */
function labelsOf({ kind, name, workspace }: Source): string {
  const source = `source="${escaped(name)}"`;
  return kind === SourceKind.TOOL_PROCESS ? `${source},workspace="${escaped(workspace)}"` : source;
}

const escaped = (value: string) => value.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");

function countUnaccepted({ tools }: Source): number {
  const isUnaccepted = (acceptance: SourceAcceptance) =>
    acceptance === SourceAcceptance.NEW || acceptance === SourceAcceptance.CHANGED;
  return tools.filter(({ acceptance }) => isUnaccepted(acceptance)).length;
}

/** Returns the metrics of the workers of this replica, by fleet. */
export function workerMetrics(
  processes: readonly Pick<WorkerProcess, "worker" | "connected" | "capacity" | "running" | "draining">[],
): string {
  const fleets = Map.groupBy(processes, ({ worker }) => worker);
  if (fleets.size === 0) return "";
  const family = (name: string, help: string, measure: (process: (typeof processes)[number]) => number): Family => ({
    ...{ name, help, type: "gauge" },
    // The pattern of the name leaves nothing to escape.
    samples: [...fleets].map(
      ([worker, each]) => `{worker="${worker}"} ${each.reduce((sum, process) => sum + measure(process), 0)}`,
    ),
  });
  return formatFamilies([
    family("toolgate_workers_connected", "Connected worker processes.", ({ connected }) => Number(connected)),
    family(
      "toolgate_worker_capacity",
      "Bodies that connected workers run at a time.",
      ({ connected, capacity, draining }) => (connected && !draining ? capacity : 0),
    ),
    family("toolgate_worker_running", "Bodies that workers run.", ({ running }) => running),
  ]);
}

/** Counts of values by upper bounds. */
export interface Histogram {
  readonly count: number;
  readonly sum: number;
  add(value: number): void;
  /** Returns the samples in the text format of Prometheus, without the metric's name. */
  samples(label: string): string[];
}

/** Creates an empty histogram with ascending bounds. */
export function createHistogram(bounds: readonly number[]): Histogram {
  const within = bounds.map(() => 0);
  let count = 0;
  let sum = 0;
  return {
    get count() {
      return count;
    },
    get sum() {
      return sum;
    },
    add(value) {
      count += 1;
      sum += value;
      for (const [i, bound] of bounds.entries()) if (value <= bound) within[i] = (within[i] ?? 0) + 1;
    },
    samples(label) {
      return [
        ...bounds.map((bound, i) => `_bucket{${label},le="${bound}"} ${within[i]}`),
        `_bucket{${label},le="+Inf"} ${count}`,
        `_sum{${label}} ${sum}`,
        `_count{${label}} ${count}`,
      ];
    },
  };
}
