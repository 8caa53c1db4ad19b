import { constants, fstatSync, openSync, write, writeSync } from "node:fs";
import { isatty } from "node:tty";
import { promisify } from "node:util";
import { pino } from "pino";
import { createLogFile, createLogTarget, type LogRotation, type LogSink, type LogTarget } from "./log-file.ts";

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
  /** Name of a channel that notices are sent to. */
  channel?: string;
  count?: number;
  /** Milliseconds. */
  duration?: number;
  error?: unknown;
  /** Exit code of a command that failed; null if a signal ended it. */
  exit?: number | null;
  line?: number;
  path?: string;
  permissionId?: string;
  principal?: string;
  reason?: string;
  requestId?: string;
  /** The agent that asked, as its session describes it. */
  requester?: unknown;
  result?: unknown;
  rpc?: string;
  /** The component, such as `tool.bash`. */
  service?: string;
  sessionId?: string;
  /** Name of the signal that ended a command. */
  signal?: string | null;
  success?: boolean;
  tool?: string;
  workspace?: string;
}

/** Writes one JSON line per call. */
export type Logger = Record<LogLevel, (message: string, fields?: LogFields) => void>;

/** The log of a service process: stderr and a file. Neither ever blocks or ends the process. */
export interface ServiceLog extends Logger {
  /** Opens the file again, for programs that rotate it. */
  reopen(): void;
  /** Number of lines dropped since the start, by target. */
  dropped(): Readonly<Record<"file" | "stderr", number>>;
  /** Resolves when every line so far is written or dropped. */
  flush(): Promise<void>;
  /** Writes the queued lines at once; only for the end of the process. */
  flushNow(): void;
}

/**
 * Logs JSON lines to stderr and appends them to `file` (0600). Each has a bounded queue; what it cannot take is dropped and
 * counted, since a full disk or a stalled reader must not stop the service.
 */
export function createLogger(options: {
  level: LogLevel;
  file: string;
  /** Undefined: the file is never rotated. */
  rotation?: LogRotation | undefined;
  now?: () => number;
}): ServiceLog {
  const { level, rotation, now } = options;
  const logFile = createLogFile(options.file, rotation, now);
  const file: LogTarget = createLogTarget({
    sink: logFile,
    onFailure(error) {
      writeTo([stderr], () =>
        log.error({ error, path: options.file }, "the log file cannot be written: its lines are dropped until it can"),
      );
    },
    onDropped: (count) => writeTo([file], () => log.warn({ count }, "lines before this one were dropped")),
  });
  const stderr: LogTarget = createLogTarget({
    sink: createStderrSink(),
    onDropped: (count) => writeTo([stderr], () => log.warn({ count }, "lines before this one were dropped")),
  });
  const all: readonly LogTarget[] = [stderr, file];
  let receivers = all;

  /** Writes the lines of `write` to these targets only. */
  function writeTo(targets: readonly LogTarget[], write: () => void): void {
    receivers = targets;
    write();
    receivers = all;
  }

  const log = pino(
    {
      level,
      base: { pid: process.pid },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (level) => ({ level }) },
      messageKey: "message",
      serializers: { error: describe },
    },
    {
      write(line) {
        for (const target of receivers) target.write(line);
      },
    },
  );
  const write =
    (level: LogLevel) =>
    (message: string, fields: LogFields = {}) =>
      log[level](known(fields), message);
  return {
    debug: write("debug"),
    info: write("info"),
    warn: write("warn"),
    error: write("error"),
    reopen: logFile.reopen,
    dropped: () => ({ file: file.dropped(), stderr: stderr.dropped() }),
    flush: async () => void (await Promise.all(all.map((target) => target.flush()))),
    flushNow() {
      for (const target of all) target.flushNow();
    },
  };
}

const names: ReadonlySet<string> = new Set(
  Object.keys({
    address: true,
    agent: true,
    args: true,
    callId: true,
    channel: true,
    count: true,
    duration: true,
    error: true,
    exit: true,
    line: true,
    path: true,
    permissionId: true,
    principal: true,
    reason: true,
    requestId: true,
    requester: true,
    result: true,
    rpc: true,
    service: true,
    sessionId: true,
    signal: true,
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

/**
 * Creates the sink of the process's stderr, which never blocks: a pipe or socket is written by Node's stream, a terminal through
 * a second, non-blocking description (another program may share the first one), a file by the thread pool.
 */
function createStderrSink(): LogSink {
  if (isatty(2)) return terminalSink() ?? streamSink();
  return fstatSync(2).isFile() ? fileSink() : streamSink();
}

function streamSink(): LogSink {
  const { stderr } = process;
  stderr.off("error", ignoreError).on("error", ignoreError);
  return {
    send: (text) =>
      new Promise((resolve, reject) => {
        stderr.write(text, (error) => (error == null ? resolve() : reject(error)));
      }),
    sendNow: (text) => void writeSync(2, text),
  };
}

/** A reader that went away is reported by the callback of the write; without a listener the event would end the process. */
function ignoreError(): void {}

function fileSink(): LogSink {
  const writeFile = promisify(write);
  return {
    async send(text) {
      for (let rest = Buffer.from(text); rest.byteLength > 0; ) {
        const { bytesWritten } = await writeFile(2, rest);
        rest = rest.subarray(bytesWritten);
      }
    },
    sendNow: (text) => void writeSync(2, text),
  };
}

function terminalSink(): LogSink | undefined {
  const fd = openTerminal("/proc/self/fd/2") ?? openTerminal("/dev/tty");
  if (fd === undefined) return undefined;
  return {
    async send(text) {
      let rest = Buffer.from(text);
      while (rest.byteLength > 0) {
        const written = writeNow(fd, rest);
        rest = rest.subarray(written);
        if (written === 0) await new Promise<void>((resolve) => void setTimeout(resolve, retryMs).unref());
      }
    },
    sendNow: (text) => void writeNow(fd, Buffer.from(text)),
  };
}

function openTerminal(path: string): number | undefined {
  try {
    return openSync(path, constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  } catch {
    return undefined;
  }
}

/** Returns the number of bytes written: 0 while the terminal takes none. */
function writeNow(fd: number, bytes: Buffer): number {
  try {
    return writeSync(fd, bytes);
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "EAGAIN") return 0;
    throw error;
  }
}

const retryMs = 50;
