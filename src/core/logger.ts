import { chmodSync } from "node:fs";
import { destination, pino } from "pino";

/** The minimum level of lines that are written. */
export type LogLevel = "debug" | "info" | "warn" | "error";

/**
 * The fields that a line may have in addition to its message. Only `args` and `result` may contain text from a tool, a token
 * or a file; the caller redacts and truncates them.
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
  /** The component, such as `tool.bash`. */
  service?: string;
  sessionId?: string;
  success?: boolean;
  tool?: string;
  workspace?: string;
}

/** Writes one JSON line per call. */
export type Logger = Record<LogLevel, (message: string, fields?: LogFields) => void>;

/**
 * Logs JSON lines to stderr and appends them to `file` (0600). A warning or an error is written before the call returns, other
 * lines together at the end of the turn: a write costs as much as all other work on a line.
 */
export function createLogger(options: { level: LogLevel; file: string }): Logger {
  const file = destination({ dest: options.file, mkdir: true, mode: 0o600, sync: true });
  // The file may exist already, with other permissions.
  chmodSync(options.file, 0o600);
  const targets = [destination({ fd: 2, sync: true }), file];
  let waiting = "";

  function flush(): void {
    const lines = waiting;
    waiting = "";
    if (lines !== "") for (const target of targets) target.write(lines);
  }

  const log = pino(
    {
      level: options.level,
      base: { pid: process.pid },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (level) => ({ level }) },
      messageKey: "message",
      serializers: { error: describe },
    },
    {
      write(line) {
        if (waiting === "") setImmediate(flush);
        waiting += line;
      },
    },
  );
  const write =
    (level: LogLevel) =>
    (message: string, fields: LogFields = {}) => {
      log[level](known(fields), message);
      if (level === "warn" || level === "error") flush();
    };
  return { debug: write("debug"), info: write("info"), warn: write("warn"), error: write("error") };
}

const names: ReadonlySet<string> = new Set(
  Object.keys({
    address: true,
    agent: true,
    args: true,
    callId: true,
    count: true,
    duration: true,
    error: true,
    line: true,
    path: true,
    permissionId: true,
    principal: true,
    reason: true,
    requestId: true,
    result: true,
    rpc: true,
    service: true,
    sessionId: true,
    success: true,
    tool: true,
    workspace: true,
  } satisfies Record<keyof LogFields, true>),
);

/** Drops fields that are not in the closed list, which a cast could let through. */
function known(fields: LogFields): LogFields {
  const unknown = Object.keys(fields).filter((name) => !names.has(name));
  if (unknown.length === 0) return fields;
  return Object.fromEntries(Object.entries(fields).filter(([name]) => names.has(name)));
}

/** Describes an error without its other properties, which can contain requests and headers. */
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
