import {
  type Source,
  SourceAcceptance,
  SourceKind,
  SourceState,
} from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { ToolErrorReason, ToolErrorReasonSchema, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { WorkerProcess } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import { type CommandExit, commandFailureOf } from "../core/command-failure.ts";

/** Counters of the calls of one tool. */
export interface ToolTally {
  tool: string;
  count: bigint;
  /** Mean duration in ms of the calls whose body was entered; 0 if there are none. */
  avgDuration: number;
  errors: bigint;
  timeouts: bigint;
}

/** Creates the counters of the calls that this replica ended; they are in memory. */
export function createMetrics() {
  const tallies = new Map<string, Tally>();

  function tallyOf(tool: string): Tally {
    const known = tallies.get(tool);
    if (known) return known;
    const tally = {
      count: 0,
      errors: new Map<string, number>(),
      commandFailures: 0,
      notReported: 0,
      changedInputs: 0,
      durations: createHistogram(durationBounds),
      waits: createHistogram(waitBounds),
      inputBytes: 0,
      outputBytes: 0,
    };
    tallies.set(tool, tally);
    return tally;
  }

  const sorted = () => [...tallies].toSorted(([a], [b]) => (a < b ? -1 : 1));

  return {
    /** Counts the end of a call. The name of an unknown tool comes from the caller and must not become a label. */
    ended({ part, isKnownTool }: { part: ToolPart; isKnownTool: boolean }): void {
      const { success, reason, commandFailure, durationMs, outputBytes } = describeEnd(part);
      const tally = tallyOf(isKnownTool ? part.tool : unknownTool);
      if (success === undefined) {
        tally.notReported += 1;
        return;
      }
      if (ranAnotherInput(part)) tally.changedInputs += 1;
      tally.count += 1;
      tally.inputBytes += Buffer.byteLength(JSON.stringify(part.state.value?.input ?? {}));
      tally.outputBytes += outputBytes;
      if (reason !== undefined) tally.errors.set(reason, (tally.errors.get(reason) ?? 0) + 1);
      if (commandFailure) tally.commandFailures += 1;
      if (durationMs !== undefined) tally.durations.add(durationMs / 1_000);
    },
    /** Counts a wait for approvers, also if another replica continues the call. */
    waited({ part, isKnownTool, ms }: { part: ToolPart; isKnownTool: boolean; ms: number }): void {
      tallyOf(isKnownTool ? part.tool : unknownTool).waits.add(ms / 1_000);
    },
    /** Returns the counters, sorted by tool. */
    stats(): ToolTally[] {
      return sorted().map(([tool, { count, errors, durations }]) => ({
        tool,
        count: BigInt(count),
        avgDuration: durations.count === 0 ? 0 : (durations.sum / durations.count) * 1_000,
        errors: BigInt([...errors.values()].reduce((sum, count) => sum + count, 0)),
        timeouts: BigInt(errors.get("timeout") ?? 0),
      }));
    },
    /** Returns all metrics in the text format of Prometheus. */
    text(): string {
      return formatFamilies(
        families.map(({ samples, ...family }) => ({
          ...family,
          samples: sorted().flatMap(([tool, tally]) => samples(tally, `tool="${tool}"`)),
        })),
      );
    },
  };
}

interface Tally {
  count: number;
  errors: Map<string, number>;
  commandFailures: number;
  /** Delegated calls without a report; they count nowhere else. */
  notReported: number;
  /** Delegated calls whose host reported that another input ran. */
  changedInputs: number;
  durations: Histogram;
  waits: Histogram;
  inputBytes: number;
  outputBytes: number;
}

/** Tests for a delegated call whose host reported that it ran another input than the approved one. */
function ranAnotherInput({ reportedBy, state }: ToolPart): boolean {
  return reportedBy !== "" && state.case === "error" && state.value.reason === ToolErrorReason.CHANGED_AFTER_APPROVAL;
}

/** Label of unknown tools; no tool can have this name. */
const unknownTool = "(unknown)";
const durationBounds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800];
const waitBounds = [1, 2, 5, 15, 60, 300, 900, 3_600, 21_600];

interface CallFamily {
  name: string;
  type: "counter" | "histogram";
  help: string;
  /** Returns the text after the metric's name, one entry per line. */
  samples(tally: Tally, label: string): string[];
}

const families: readonly CallFamily[] = [
  {
    name: "toolgate_calls_total",
    type: "counter",
    help: "Calls that ended, without those whose outcome was not reported.",
    samples: ({ count }, label) => [`{${label}} ${count}`],
  },
  {
    name: "toolgate_calls_not_reported_total",
    type: "counter",
    help: "Calls that an agent began and whose outcome it did not report.",
    samples: ({ notReported }, label) => (notReported === 0 ? [] : [`{${label}} ${notReported}`]),
  },
  {
    name: "toolgate_changed_inputs_total",
    type: "counter",
    help: "Calls whose agent reported that it ran another input than the approved one. Any increase is an alert.",
    samples: ({ changedInputs }, label) => (changedInputs === 0 ? [] : [`{${label}} ${changedInputs}`]),
  },
  {
    name: "toolgate_call_errors_total",
    type: "counter",
    help: "Calls that ended without a result, by reason.",
    samples: ({ errors }, label) => [...errors].map(([reason, count]) => `{${label},reason="${reason}"} ${count}`),
  },
  {
    name: "toolgate_command_failures_total",
    type: "counter",
    help: "Completed calls whose command exited with another code than 0, or was ended by a signal.",
    samples: ({ commandFailures }, label) => [`{${label}} ${commandFailures}`],
  },
  {
    name: "toolgate_call_duration_seconds",
    type: "histogram",
    help: "Time from the start mark to the end, of calls whose body was entered.",
    samples: ({ durations }, label) => durations.samples(label),
  },
  {
    name: "toolgate_call_wait_seconds",
    type: "histogram",
    help: "Time that calls waited for approvers.",
    samples: ({ waits }, label) => waits.samples(label),
  },
  {
    name: "toolgate_call_input_bytes_total",
    type: "counter",
    help: "Size of the inputs of calls that ended, as JSON.",
    samples: ({ inputBytes }, label) => [`{${label}} ${inputBytes}`],
  },
  {
    name: "toolgate_call_output_bytes_total",
    type: "counter",
    help: "Size of the outputs of tools, before truncation for the model.",
    samples: ({ outputBytes }, label) => [`{${label}} ${outputBytes}`],
  },
];

/** Outcome of a call for log, metrics and spans. */
interface CallEnding {
  /** False for an error, and for a completed call whose command failed; absent if the outcome is not known. */
  success?: boolean;
  /** Reason of an error as one word, such as `timeout`. */
  reason?: string;
  /** The end of the command of a completed call, if that failed. */
  commandFailure?: CommandExit;
  /** Time from the start mark to the end; absent if the body was never entered. */
  durationMs?: number;
  /** Size of the tool's output before truncation. */
  outputBytes: number;
}

/** Returns the outcome of a call from its terminal part. */
export function describeEnd({ state }: ToolPart): CallEnding {
  if (state.case !== "completed" && state.case !== "error") return { success: false, outputBytes: 0 };
  const { time, metadata } = state.value;
  const size = metadata?.originalSize;
  const commandFailure = state.case === "completed" ? commandFailureOf(metadata) : undefined;
  const ran = state.case === "completed" || (time !== undefined && time.end > time.start);
  const isUnknown = state.case === "error" && state.value.reason === ToolErrorReason.NOT_REPORTED;
  return {
    ...(!isUnknown && { success: state.case === "completed" && commandFailure === undefined }),
    ...(commandFailure && { commandFailure }),
    ...(state.case === "error" && { reason: wordOf(state.value.reason) }),
    ...(ran && time && { durationMs: time.end - time.start }),
    outputBytes: typeof size === "number" ? size : 0,
  };
}

function wordOf(reason: ToolErrorReason): string {
  return ToolErrorReasonSchema.value[reason]?.localName.toLowerCase() ?? String(reason);
}

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

/** Counters and queue of the notices to channels. */
interface NoticeFigures {
  counts(): ReadonlyMap<string, Readonly<Record<"sent" | "updated" | "retried" | "dead" | "delayMs", number>>>;
  queue(): Promise<{ waiting: number; oldestMs: number }>;
}

/** Returns the metrics of the notices; without the queue while the store does not answer. */
export async function noticeMetrics({ counts, queue }: NoticeFigures): Promise<string> {
  const found = await queue().catch(() => undefined);
  const outcomes = ["sent", "updated", "retried", "dead"] as const;
  const channels = [...counts()].map(([name, of]) => ({ label: `channel="${escaped(name)}"`, of }));
  return formatFamilies([
    {
      name: "toolgate_notices_total",
      type: "counter",
      help: "Attempts to deliver a notice, by channel and outcome; a dead notice is not tried again.",
      samples: channels.flatMap(({ label, of }) => outcomes.map((each) => `{${label},outcome="${each}"} ${of[each]}`)),
    },
    {
      name: "toolgate_notice_delay_seconds_total",
      type: "counter",
      help: "Time from the opening of a request to the provider's acceptance, summed over the notices that were sent.",
      samples: channels.map(({ label, of }) => `{${label}} ${of.delayMs / 1_000}`),
    },
    ...(found === undefined
      ? []
      : [
          single("toolgate_waiting_notices", "gauge", "Notices of the whole store to deliver.", found.waiting),
          single(
            "toolgate_oldest_notice_age_seconds",
            "gauge",
            "Time for which the oldest of them is due; 0 if none is.",
            found.oldestMs / 1_000,
          ),
        ]),
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
export type Histogram = ReturnType<typeof createHistogram>;

/** Creates an empty histogram with ascending bounds. */
export function createHistogram(bounds: readonly number[]) {
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
    add(value: number): void {
      count += 1;
      sum += value;
      for (const [i, bound] of bounds.entries()) if (value <= bound) within[i] = (within[i] ?? 0) + 1;
    },
    /** Returns the samples in the text format of Prometheus, without the metric's name. */
    samples(label: string): string[] {
      return [
        ...bounds.map((bound, i) => `_bucket{${label},le="${bound}"} ${within[i]}`),
        `_bucket{${label},le="+Inf"} ${count}`,
        `_sum{${label}} ${sum}`,
        `_count{${label}} ${count}`,
      ];
    },
  };
}

/** Returns the metrics of the export of the audit. */
export function exportMetrics(
  counts: ReadonlyMap<string, Readonly<Record<"exported" | "failed" | "lost" | "lagMs", number>>>,
): string {
  const receivers = [...counts].map(([name, of]) => ({ label: `receiver="${escaped(name)}"`, of }));
  const family = (name: string, type: "counter" | "gauge", help: string, of: (counts: Counts) => number) => ({
    ...{ name: `toolgate_audit_${name}`, type, help },
    samples: receivers.map(({ label, of: counted }) => `{${label}} ${of(counted)}`),
  });
  type Counts = (typeof receivers)[number]["of"];
  return formatFamilies([
    family("exported_total", "counter", "Records of the audit that a receiver accepted.", ({ exported }) => exported),
    family("export_failures_total", "counter", "Failed attempts to export records.", ({ failed }) => failed),
    family(
      "export_lost_total",
      "counter",
      "Records of the whole store that were removed before the receiver accepted them.",
      ({ lost }) => lost,
    ),
    family(
      "export_lag_seconds",
      "gauge",
      "Age of the oldest record that waits, on the replica that exports.",
      ({ lagMs }) => lagMs / 1_000,
    ),
  ]);
}
