import type { LogRotation } from "../core/log-file.ts";
import type { Settings } from "./file.ts";

/** Reads the rotation of the log file. */
export function readRotation(log: Settings["log"] = {}): LogRotation {
  return {
    maxBytes: log.max_bytes ?? 67_108_864,
    maxAgeMs: (log.max_age_hours ?? 168) * 3_600_000,
    maxFiles: log.max_files ?? 4,
  };
}
