import { readdirSync } from "node:fs";
import { monitorEventLoopDelay } from "node:perf_hooks";
import type { JsonValue } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  AnswerMethodSchema,
  type DecisionRecord,
  PermissionAction,
  PermissionActionSchema,
  type PermissionDecision,
  PermissionLayer,
  PermissionOutcome,
  PermissionOutcomeSchema,
  type PermissionSettled,
  type Requester,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { askingIn, causeOf } from "../call/attention.ts";
import type { CallObserver } from "../call/observer.ts";
import type { Store } from "../call/ports.ts";
import { timeOfId } from "../core/ids.ts";
import type { Logger, ServiceLog } from "../core/logger.ts";
import { RequestError } from "../core/request-error.ts";
import { secretForms, visibleLine } from "../core/visible.ts";
import {
  createHistogram,
  createMetrics,
  describeEnd,
  type Family,
  formatFamilies,
  type Histogram,
  single,
  type ToolTally,
} from "./metrics.ts";

/** Log lines, metrics and spans of this replica's calls. */
export interface Telemetry {
  observer: CallObserver;
  /** The store with its steps measured. */
  store: Store;
  /** Returns the metrics in the text format of Prometheus. */
  metrics(): Promise<string>;
  /** Returns the counters since this replica started, at `since` (ms since the epoch). */
  stats(): { since: number; tools: ToolTally[] };
  /** Exports the remaining spans. */
  close(): Promise<void>;
}

/** Creates the telemetry; without `tracing` no span is created and OpenTelemetry is not loaded. */
export async function createTelemetry({
  log,
  version,
  tracing,
  store,
}: {
  log: Logger & Partial<Pick<ServiceLog, "dropped">>;
  version: string;
  tracing: boolean;
  store: Store;
}): Promise<Telemetry> {
  const since = Date.now();
  const metrics = createMetrics();
  const agents = createAgentMetrics();
  const steps = createStoreMetrics();
  const ownProcess = createProcessMetrics({ version, store: store.calls.isShared ? "redis" : "sqlite" });
  const differences = new Map<string, number>();
  let runningCount = 0;
  const spans = tracing ? (await import("./spans.ts")).createSpans({ version, log }) : undefined;
  return {
    observer: {
      began(call, wait) {
        const span = spans?.began(call, wait);
        return {
          async step(name, work) {
            if (name === "execute") runningCount += 1;
            try {
              // Without tracing, the caller's trace context is passed on unchanged.
              return span ? await span.step(name, work) : await work(call.spec.trace);
            } finally {
              if (name === "execute") runningCount -= 1;
            }
          },
          over: (part) => span?.over(part),
        };
      },
      ended(end) {
        metrics.ended(end);
        agents.ended(end.part);
        logEnd(log, end.part);
      },
      waited: metrics.waited,
      differed(from, to) {
        const label = `{from="${actionName(from)}",to="${actionName(to)}"}`;
        differences.set(label, (differences.get(label) ?? 0) + 1);
      },
    },
    store: agents.countRequests(steps.measure(store)),
    async metrics() {
      const requests = await requestFamilies({
        countOpenAsks: store.permissions.countOpenAsks,
        now: store.calls.now,
      });
      const running = single("toolgate_running_calls", "gauge", "Calls whose body runs on this replica.", runningCount);
      const families: Family[] = [
        ...requests,
        running,
        ...agents.families(),
        ...steps.families(await store.calls.sizes().catch(() => ({}))),
        {
          name: "toolgate_shadow_changes_total",
          type: "counter",
          help: "Recorded decisions to which the rules of [shadow] come otherwise, by what rules decided and what these would.",
          samples: [...differences].map(([label, count]) => `${label} ${count}`),
        },
        ...logFamilies(log),
        ...ownProcess.families(),
      ];
      return metrics.text() + formatFamilies(families);
    },
    stats: () => ({ since, tools: metrics.stats() }),
    async close() {
      ownProcess.close();
      await spans?.close();
    },
  };
}

const actionName = (action: PermissionAction) =>
  action === PermissionAction.UNSPECIFIED ? "failed" : PermissionActionSchema.value[action]?.localName.toLowerCase();

/** Returns the metrics of the log itself; none for a logger that does not count. */
function logFamilies({ dropped }: Partial<Pick<ServiceLog, "dropped">>): Family[] {
  if (dropped === undefined) return [];
  return [
    {
      name: "toolgate_log_dropped_total",
      type: "counter",
      help: "Log lines that a full disk or a stalled reader of stderr could not take, by target.",
      samples: Object.entries(dropped()).map(([target, count]) => `{target="${target}"} ${count}`),
    },
  ];
}

/** Reads of the store for the metrics of open permission requests. */
interface OpenRequestReader {
  /** Returns the number of open permission requests, and the time at which the oldest was opened. */
  countOpenAsks(): Promise<{ count: number; oldest?: number }>;
  /** Ms since the epoch, by the store's clock. */
  now(): number;
}

/** Returns the metrics of the open permission requests of the store; none while the store does not answer. */
async function requestFamilies({ countOpenAsks, now }: OpenRequestReader): Promise<Family[]> {
  const found = await countOpenAsks().catch(() => undefined);
  if (found === undefined) return [];
  const age = found.oldest === undefined ? 0 : Math.max(0, now() - found.oldest) / 1_000;
  return [
    single(
      "toolgate_open_requests",
      "gauge",
      "Permission requests that wait for an answer, in the whole store: each replica reports the same.",
      found.count,
    ),
    single(
      "toolgate_oldest_request_age_seconds",
      "gauge",
      "Time since the oldest open permission request was opened; 0 if there is none.",
      age,
    ),
  ];
}

/** Kinds of agents that become a label. Callers choose the name, so the number of labels has to be bounded. */
const maxKinds = 32;

/** Creates the counters of calls and of answers by the kind of agent that asked. No label names a person. */
function createAgentMetrics() {
  const counts = new Map<string, Map<string, number>>();
  const answers = new Map<string, number>();
  const kinds = new Set<string>();

  function kindOf({ kind }: Pick<Requester, "kind">): string {
    if (kinds.size < maxKinds) kinds.add(kind);
    return kinds.has(kind) ? kind : "(other)";
  }

  const attention = createAttentionMetrics();

  /** Counts the answer of an approver; requests that ended with another one are part of its answer. */
  function answered({ settled, requester, method, agent, decisions }: DecisionRecord): void {
    if (settled === undefined || settled.by === "" || settled.settledWith !== "") return;
    attention.answered(agent, decisions, settled);
    const kind = requester === undefined ? "" : kindOf(requester);
    const by = AnswerMethodSchema.value[method]?.localName.toLowerCase();
    const outcome = PermissionOutcomeSchema.value[settled.outcome]?.localName.toLowerCase();
    const labels = `{kind="${kind}",method="${by}",outcome="${outcome}"}`;
    answers.set(labels, (answers.get(labels) ?? 0) + 1);
  }

  return {
    /** Decorates the steps that open and settle requests. */
    countRequests({ calls, permissions, ...store }: Store): Store {
      return {
        ...store,
        calls: {
          ...calls,
          // The id changes when a shared store loses its contents; a copy would go stale.
          get storeId() {
            return calls.storeId;
          },
          async openAsks(step) {
            const isOpened = await calls.openAsks(step);
            if (isOpened) for (const { agent, decisions } of step.asks) attention.asked(agent, decisions);
            return isOpened;
          },
        },
        permissions: {
          ...permissions,
          async settle(settlement) {
            const settled = await permissions.settle(settlement);
            if (settled.result === "won") for (const decision of settlement.decisions ?? []) answered(decision);
            return settled;
          },
        },
      };
    },
    /** Counts the end of a call; one whose session names no agent is not counted. */
    ended({ agent, requester, state }: Pick<ToolPart, "agent" | "requester" | "state">): void {
      attention.ended(agent);
      if (requester === undefined) return;
      const kind = kindOf(requester);
      const outcomes = counts.get(kind) ?? new Map<string, number>();
      const outcome = outcomeOf(state);
      counts.set(kind, outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1));
    },
    families: (): Family[] => [
      ...attention.families(),
      {
        name: "toolgate_agent_calls_total",
        type: "counter",
        help: "Calls that ended, by the kind of agent that asked and by outcome.",
        samples: [...counts].flatMap(([kind, outcomes]) =>
          [...outcomes].map(([outcome, count]) => `{kind="${kind}",outcome="${outcome}"} ${count}`),
        ),
      },
      {
        name: "toolgate_answers_total",
        type: "counter",
        help: "Answers of approvers, by the kind of agent that asked, by method and by outcome.",
        samples: [...answers].map(([labels, count]) => `${labels} ${count}`),
      },
    ],
  };
}

/** Pairs of an agent and a rule that become labels: a body names its permissions itself. */
const maxCauses = 100;
const answerBounds = [2, 10, 60, 600, 3_600];

/** Creates the counters of how often people are asked and how fast they answer, by agent and by rule. No label names a person. */
function createAttentionMetrics() {
  const ended = new Map<string, number>();
  const asked = new Map<string, number>();
  const answers = new Map<string, Histogram>();
  const causes = new Set<string>();

  function labelOf(agent: string, decisions: readonly PermissionDecision[]): string {
    const asking = askingIn(decisions);
    // Callers write the rules of sessions, so these stand for one.
    const rule = asking && (isConfigured.has(asking.layer) ? causeOf(asking) : "rule of a session or workspace");
    const label = `agent="${labelText(agent)}",rule="${labelText(rule ?? "(none)")}"`;
    if (causes.size < maxCauses) causes.add(label);
    return causes.has(label) ? label : 'agent="(other)",rule="(other)"';
  }

  return {
    ended(agent: string): void {
      ended.set(agent, (ended.get(agent) ?? 0) + 1);
    },
    asked(agent: string, decisions: readonly PermissionDecision[]): void {
      const label = labelOf(agent, decisions);
      asked.set(label, (asked.get(label) ?? 0) + 1);
    },
    answered(
      agent: string,
      decisions: readonly PermissionDecision[],
      { permissionId, time, outcome }: Pick<PermissionSettled, "permissionId" | "time" | "outcome">,
    ): void {
      const said = outcome === PermissionOutcome.REJECT ? "rejected" : "approved";
      const label = `${labelOf(agent, decisions)},outcome="${said}"`;
      const histogram = answers.get(label) ?? createHistogram(answerBounds);
      answers.set(label, histogram);
      histogram.add(Math.max(0, time - timeOfId(permissionId)) / 1_000);
    },
    families: (): Family[] => [
      {
        name: "toolgate_attention_calls_total",
        type: "counter",
        help: "Calls that ended, by agent.",
        samples: [...ended].map(([agent, count]) => `{agent="${labelText(agent)}"} ${count}`),
      },
      {
        name: "toolgate_attention_requests_total",
        type: "counter",
        help: "Requests to people, by agent and by the rule or reason that asked.",
        samples: [...asked].map(([label, count]) => `{${label}} ${count}`),
      },
      {
        name: "toolgate_attention_answer_seconds",
        type: "histogram",
        help: "Time from a request to the answer of a person; an approval within 2 s was hardly read.",
        samples: [...answers].flatMap(([label, histogram]) => histogram.samples(label)),
      },
    ],
  };
}

const isConfigured: ReadonlySet<PermissionLayer> = new Set([
  ...[PermissionLayer.UNSPECIFIED, PermissionLayer.ENGINE, PermissionLayer.DEFAULTS, PermissionLayer.PRESET],
  ...[PermissionLayer.CONFIG, PermissionLayer.AGENT, PermissionLayer.AGENT_LIMITS],
]);

const labelText = (text: string) => visibleLine(text).slice(0, 200).replaceAll(/["\\]/g, "\\$&");

function outcomeOf(state: ToolPart["state"]): string {
  if (state.case !== "error") return "completed";
  return state.value.reason === ToolErrorReason.NOT_REPORTED ? "not_reported" : "error";
}

/** Creates the metrics of this process, under the names that Prometheus clients use, and `toolgate_build_info`. */
function createProcessMetrics({ version, store }: { version: string; store: string }) {
  const lag = monitorEventLoopDelay({ resolution: 20 });
  lag.enable();
  const started = performance.timeOrigin / 1_000;

  return {
    /** Returns the metrics; the lag of the event loop is that since the last call. */
    families(): Family[] {
      const { user, system } = process.cpuUsage();
      const [mean, p99, max] = [lag.mean || 0, lag.percentile(99), lag.max];
      lag.reset();
      const openFiles = openFileCount();
      return [
        {
          name: "toolgate_build_info",
          type: "gauge",
          help: "Version of Toolgate and of Node, and the kind of store; always 1.",
          samples: [`{version="${version}",node="${process.versions.node}",store="${store}"} 1`],
        },
        single("process_start_time_seconds", "gauge", "Start of the process, in seconds since the epoch.", started),
        single("process_cpu_seconds_total", "counter", "CPU time of the process.", (user + system) / 1_000_000),
        single("process_resident_memory_bytes", "gauge", "Resident memory of the process.", process.memoryUsage.rss()),
        ...(openFiles === undefined
          ? []
          : [single("process_open_fds", "gauge", "Open file descriptors of the process.", openFiles)]),
        {
          name: "nodejs_eventloop_lag_seconds",
          type: "gauge",
          help: "Delay of the event loop since the last scrape.",
          samples: Object.entries({ mean, p99, max }).map(([stat, value]) => `{stat="${stat}"} ${seconds(value)}`),
        },
      ];
    },
    close: () => lag.disable(),
  };
}

/** Converts nanoseconds; a histogram without values has none. */
const seconds = (nanoseconds: number) => (Number.isFinite(nanoseconds) ? Math.max(0, nanoseconds) / 1e9 : 0);

function openFileCount(): number | undefined {
  try {
    return readdirSync("/proc/self/fd").length;
  } catch {
    return undefined;
  }
}

/** Creates the metrics of a store; `measure` decorates the store. */
export function createStoreMetrics() {
  const operations = new Map<string, { durations: Histogram; errors: number }>();

  /** Measures each call of a function. A refusal by a guard is no error; a store that is not available is one. */
  function time<Args extends unknown[], Result>(name: string, work: (...args: Args) => Promise<Result>) {
    const operation = { durations: createHistogram(bounds), errors: 0 };
    operations.set(name, operation);
    return async (...args: Args): Promise<Result> => {
      const began = performance.now();
      try {
        return await work(...args);
      } catch (error) {
        if (!(error instanceof RequestError) || storeFailures.has(error.reason)) operation.errors += 1;
        throw error;
      } finally {
        operation.durations.add((performance.now() - began) / 1_000);
      }
    };
  }

  return {
    /** Decorates the steps that write; reads are not measured. */
    measure({ calls, permissions, outputs }: Store): Store {
      return {
        calls: {
          ...calls,
          // The id changes when a shared store loses its contents; a copy would go stale.
          get storeId() {
            return calls.storeId;
          },
          createSession: time("create_session", calls.createSession),
          openCall: time("open_call", calls.openCall),
          openAsks: time("open_asks", calls.openAsks),
          startCall: time("start_call", calls.startCall),
          recordEvents: time("record_events", calls.recordEvents),
          finishCall: time("finish_call", calls.finishCall),
          claimCall: time("claim_call", calls.claimCall),
          parkCall: time("park_call", calls.parkCall),
          resumeCall: time("resume_call", calls.resumeCall),
          renewLeases: time("renew_leases", calls.renewLeases),
        },
        permissions: { ...permissions, settle: time("settle_ask", permissions.settle) },
        outputs: { ...outputs, append: time("append_output", outputs.append) },
      };
    },
    families(sizes: Readonly<Record<string, number>>): Family[] {
      const all = [...operations].map(([name, operation]) => ({ label: `operation="${name}"`, ...operation }));
      return [
        {
          name: "toolgate_store_duration_seconds",
          type: "histogram",
          help: "Duration of the steps that write to the store, by operation.",
          samples: all.flatMap(({ label, durations }) => durations.samples(label)),
        },
        {
          name: "toolgate_store_errors_total",
          type: "counter",
          help: "Steps that failed because the store was not available or is defective, by operation.",
          samples: all.map(({ label, errors }) => `{${label}} ${errors}`),
        },
        {
          name: "toolgate_store_bytes",
          type: "gauge",
          help: "Bytes of the database, of its free pages and of its write-ahead log, by part; none with Redis.",
          samples: Object.entries(sizes).map(([part, bytes]) => `{part="${part}"} ${bytes}`),
        },
      ];
    },
  };
}

/** Reasons with which a store refuses because it failed itself. */
const storeFailures: ReadonlySet<ErrorReason> = new Set([ErrorReason.STORE_UNAVAILABLE, ErrorReason.STORE_DAMAGED]);
const bounds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10];

/** Logs one line for a call that ended: tool, duration, outcome, and its redacted and truncated input and output. */
function logEnd(log: Logger, part: ToolPart): void {
  const { sessionId, callId, agent, requester, tool } = part;
  const { success, reason, commandFailure, durationMs, outputBytes } = describeEnd(part);
  const state = part.state.value;
  log.info("call ended", {
    service: `tool.${tool}`,
    sessionId,
    callId,
    agent,
    ...(requester && { requester: requesterForLog(requester) }),
    duration: durationMs ?? 0,
    ...(success !== undefined && { success }),
    ...(reason !== undefined && { reason }),
    ...(commandFailure && { exit: commandFailure.exit, signal: commandFailure.signal }),
    args: forLog(state?.input ?? {}),
    result: {
      bytes: outputBytes,
      ...(part.state.case === "completed" && {
        title: textForLog(part.state.value.title),
        text: textForLog(part.state.value.output),
      }),
      ...(part.state.case === "error" && { error: textForLog(part.state.value.error) }),
    },
  });
}

function requesterForLog({ kind, place, subagent }: Requester): unknown {
  return forLog({ kind, place, subagent });
}

const maxTextLength = 200;
const maxLineLength = 2_000;
const maxEntries = 20;
const maxDepth = 4;
const redacted = "[redacted]";

/**
 * Redacts what looks like a secret in a value and truncates the rest to the size of a log line. It cannot find every secret: one
 * that looks like an ordinary word stays.
 */
export function forLog(value: JsonValue): JsonValue {
  let remaining = maxLineLength;

  function shown(value: JsonValue, depth: number): JsonValue {
    if (remaining <= 0 || (depth > maxDepth && typeof value === "object")) return "…";
    if (typeof value === "string") return spend(textForLog(value));
    if (typeof value !== "object" || value === null) return spend(value);
    if (Array.isArray(value)) return value.slice(0, maxEntries).map((entry) => shown(entry, depth + 1));
    const entries = Object.entries(value).slice(0, maxEntries);
    return Object.fromEntries(
      entries.map(([key, entry]) => [
        spend(textForLog(key)),
        secretName.test(key) ? redacted : shown(entry, depth + 1),
      ]),
    );
  }

  function spend<T extends string | number | boolean | null>(value: T): T {
    remaining -= String(value).length + 4;
    return value;
  }

  return shown(value, 0);
}

/** Returns the beginning of a text with secrets redacted. */
export function textForLog(text: string): string {
  let shown = text.slice(0, 2 * maxTextLength);
  for (const [pattern, replacement] of secrets) shown = shown.replace(pattern, replacement);
  // The end of the examined text is not shown: a secret that begins there is incomplete and may not be recognized.
  const safe = text.length > 2 * maxTextLength ? Math.max(0, shown.length - maxTextLength) : shown.length;
  const length = Math.min(maxTextLength, safe);
  return length === shown.length ? shown : `${shown.slice(0, length)}…`;
}

const word = "pass(?:word|wd|phrase)|secret|token|credential|authorization|cookie|(?:api|access|private)[-_]?key";
const value = `"[^"]*"?|'[^']*'?|[^\\s"']+`;
const secretName = new RegExp(word, "i");

/**
 * Patterns of secrets and their replacements. They run over tool output at every call, so none may begin with a repetition:
 * matching would take quadratic time.
 */
const secrets: readonly (readonly [RegExp, string])[] = [
  [/-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*-----|$)/g, redacted],
  [/((?:authorization|cookie)["']?\s*[=:]\s*["']?)[^\r\n"']+/gi, `$1${redacted}`],
  [/\b(Bearer|Basic) +[\w.~+/=-]{6,}/gi, `$1 ${redacted}`],
  [/:\/\/[^\s/@]{1,200}@/g, `://${redacted}@`],
  // NAME=value, "name": "value"
  [new RegExp(`((?:${word})[\\w-]*["']?\\s*[=:]\\s*)(${value})`, "gi"), `$1${redacted}`],
  // --name value
  [new RegExp(`(--?[\\w-]{0,40}(?:${word})[\\w-]*\\s+)(${value})`, "gi"), `$1${redacted}`],
  // NAME value, if the value has the form of a secret: long, with a digit. Plain words after the name stay.
  [new RegExp(`((?:${word})[\\w-]*["']?\\s+["']?)(?=[\\w.~+/=-]{0,200}\\d)[\\w.~+/=-]{12,}`, "gi"), `$1${redacted}`],
  [secretForms, redacted],
];
