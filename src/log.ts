import { chmodSync } from "node:fs";
import { destination, multistream, pino } from "pino";

/** The level from which on lines are written. */
export type LogLevel = "debug" | "info" | "warn" | "error";

/**
 * What a line may hold besides its message: nothing that a tool, a token or a person's file could have put there, but in `args`
 * and `result`, which are censored and cut before.
 */
export interface LogFields {
  address?: string;
  agent?: string;
  args?: unknown;
  callId?: string;
  count?: number;
  /** Milliseconds. */
  duration?: number;
  error?: unknown;
  line?: number;
  path?: string;
  permissionId?: string;
  principal?: string;
  reason?: string;
  requestId?: string;
  result?: unknown;
  rpc?: string;
  /** The part of the program, such as `tool.bash`. */
  service?: string;
  sessionId?: string;
  success?: boolean;
  tool?: string;
  workspace?: string;
}

/** Writes one JSON line a call. */
export type Logger = Record<LogLevel, (message: string, fields?: LogFields) => void>;

/** Logs JSON lines to stderr and appends them to `file` (0600); each line is written before the call returns. */
export function createLogger(options: { level: LogLevel; file: string }): Logger {
  const file = destination({ dest: options.file, mkdir: true, mode: 0o600, sync: true });
  // The file may be there from before, with other rights.
  chmodSync(options.file, 0o600);
  const log = pino(
    {
      level: options.level,
      base: { pid: process.pid },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (level) => ({ level }) },
      messageKey: "message",
      serializers: { error: describe },
      redact: { paths: secrets.flatMap((key) => [key, `*.${key}`]), censor: "[redacted]" },
    },
    multistream([
      { level: options.level, stream: destination({ fd: 2, sync: true }) },
      { level: options.level, stream: file },
    ]),
  );
  const write =
    (level: LogLevel) =>
    (message: string, fields: LogFields = {}) =>
      log[level](fields, message);
  return { debug: write("debug"), info: write("info"), warn: write("warn"), error: write("error") };
}

/** A net below the closed list of fields, for what a cast lets through. */
const secrets = [
  "token",
  "authorization",
  "password",
  "secret",
  "value",
  "headers",
  "header",
  "env",
  "input",
  "output",
];

/** An error without its other properties, which can hold requests and headers. */
function describe(error: unknown): unknown {
  if (!(error instanceof Error)) return String(error);
  const { name, message, stack, cause } = error;
  return {
    name,
    message,
    stack,
    ...("code" in error ? { code: error.code } : {}),
    ...(cause === undefined ? {} : { cause: describe(cause) }),
  };
}
