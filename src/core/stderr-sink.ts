import { constants, fstatSync, openSync, write, writeSync } from "node:fs";
import { isatty } from "node:tty";
import { promisify } from "node:util";
import type { LogSink } from "./log-target.ts";

/**
 * Creates the sink of the process's stderr, which never blocks: a pipe or socket is written by Node's stream, a terminal through
 * a second, non-blocking description (another program may share the first one), a file by the thread pool.
 */
export function createStderrSink(): LogSink {
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
