import { ConfigError } from "./errors.ts";
import type { Settings } from "./file.ts";

/** Limits of requests and calls. */
export interface ConfigLimits {
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
}

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
  };
  if (read.timeoutMs <= read.maxTimeoutMs && read.inputBytes <= read.requestBytes) return read;
  throw new ConfigError(
    "limits: timeout_ms must not exceed max_timeout_ms, and input_bytes must not exceed request_bytes; correct one of the two",
  );
}
