import { availableParallelism } from "node:os";
import { ConfigError } from "./errors.ts";
import type { Settings } from "./file.ts";

/** Limits of requests and calls. */
export interface ReplicaLimits {
  requestBytes: number;
  inputBytes: number;
  outputBytes: number;
  /** The timeout of a tool if neither the call nor the tool sets one. */
  timeoutMs: number;
  /** The maximum timeout of a tool. */
  maxTimeoutMs: number;
  /** Maximum number of open asks of one session tree. */
  openAsks: number;
  /** Maximum number of open calls of one session. */
  runningCalls: number;
  /** Maximum number of bodies that run at one replica; built-in tools that only read and delegated calls do not count. */
  replicaRunning: number;
  /** Time in which the host of a delegated call must report its result. */
  reportMs: number;
  /** Time in which a request must collect the approval of a delegated call. */
  collectMs: number;
}

/** Limits of subagents. */
export interface TaskLimits {
  /** Maximum number of sessions of subagents below a root session, one under the other. */
  taskDepth: number;
  /** Maximum number of tasks of one session tree that run at this replica. */
  runningTasks: number;
  /** Time within which an agent runner and the service send each other something. */
  runnerBeatMs: number;
  /** Time for which the runs of an agent runner without a stream go on. */
  runnerResumeMs: number;
}

/** Limits of connections and of what clients without a token may send. */
export interface NetworkLimits {
  /** Maximum number of open connections. */
  connections: number;
  /** Maximum number of open connections from one address, and from loopback. */
  connectionsPerAddress: number;
  connectionsFromLoopback: number;
  /** Maximum number of open requests without a token on one connection. */
  requestsWithoutToken: number;
  /** Maximum size of a request to an rpc that needs no token. */
  publicRequestBytes: number;
  /** Time in which the body of a request must arrive. */
  bodyMs: number;
  /** Maximum number of bytes that all requests together have in memory until they have arrived. */
  bufferedBytes: number;
}

/** All limits that are configured. */
export interface ConfigLimits extends ReplicaLimits, TaskLimits, NetworkLimits {}

/** Reads the limits, and refuses contradictory ones. */
export function readLimits(limits: Settings["limits"] = {}): ConfigLimits {
  const read = {
    requestBytes: limits.request_bytes ?? 4_194_304,
    inputBytes: limits.input_bytes ?? 524_288,
    outputBytes: limits.output_bytes ?? 268_435_456,
    timeoutMs: limits.timeout_ms ?? 120_000,
    maxTimeoutMs: limits.max_timeout_ms ?? 3_600_000,
    openAsks: limits.open_asks ?? 100,
    runningCalls: limits.running_calls ?? 64,
    replicaRunning: limits.replica_running ?? Math.max(8 * availableParallelism(), 16),
    reportMs: limits.report_ms ?? 600_000,
    collectMs: limits.collect_ms ?? 600_000,
    taskDepth: limits.task_depth ?? 1,
    runningTasks: limits.running_tasks ?? 8,
    runnerBeatMs: limits.runner_beat_ms ?? 10_000,
    runnerResumeMs: limits.runner_resume_ms ?? 30_000,
    connections: limits.connections ?? 1_024,
    connectionsPerAddress: limits.connections_per_address ?? 64,
    connectionsFromLoopback: limits.connections_from_loopback ?? 512,
    requestsWithoutToken: limits.requests_without_token ?? 16,
    publicRequestBytes: limits.public_request_bytes ?? 4_096,
    bodyMs: limits.body_ms ?? 30_000,
    bufferedBytes: limits.buffered_bytes ?? 268_435_456,
  };
  if (read.bufferedBytes < read.requestBytes) {
    throw new ConfigError(
      `limits: buffered_bytes (${read.bufferedBytes}) must not be less than request_bytes (${read.requestBytes}), otherwise the largest request never fits; correct one of the two`,
    );
  }
  if (read.timeoutMs <= read.maxTimeoutMs && read.inputBytes <= read.requestBytes) return read;
  throw new ConfigError(
    "limits: timeout_ms must not exceed max_timeout_ms, and input_bytes must not exceed request_bytes; correct one of the two",
  );
}
