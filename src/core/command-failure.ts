import type { JsonObject } from "@bufbuild/protobuf";

/** The failing end of a command: its exit code, or the signal that ended it. */
export interface CommandExit {
  /** The exit code; null if a signal ended the command. */
  exit: number | null;
  /** Name of the signal; null for an exit code. */
  signal: string | null;
}

/**
 * Reads from the metadata of a completed call how its command failed. Undefined if it exited with 0, or if the tool reports
 * no `exit`.
 */
export function commandFailureOf(metadata: JsonObject | undefined): CommandExit | undefined {
  const { exit, signal } = metadata ?? {};
  if ((typeof exit !== "number" && exit !== null) || exit === 0) return undefined;
  return { exit, signal: typeof signal === "string" && /^SIG[A-Z0-9]+$/.test(signal) ? signal : null };
}

/** Names the failing end of a command, such as `exit code 3`. */
export function commandFailureWords({ exit, signal }: CommandExit): string {
  if (exit !== null) return `exit code ${exit}`;
  return signal === null ? "stopped before its end" : `ended by ${signal}`;
}
