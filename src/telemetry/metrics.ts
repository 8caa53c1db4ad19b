import { ToolErrorReason, ToolErrorReasonSchema, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type CommandExit, commandFailureOf } from "../core/command-failure.ts";
import { createHistogram, formatFamilies, type Histogram } from "./families.ts";

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
