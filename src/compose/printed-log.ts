import type { Logger } from "../core/logger.ts";
import { visible } from "../core/visible.ts";

const maxLines = 100;
const windowMs = 60_000;
const maxLineLength = 1_000;

/** Creates the log of what a program prints: whole lines, escaped and cut, up to a number of them each minute. Others are counted. */
export function createPrintedLog(
  log: Pick<Logger, "info" | "warn">,
  args: { path: string; workspace: string },
): (stream: "stdout" | "stderr", text: string) => void {
  const rest = { stdout: "", stderr: "" };
  let left = maxLines;
  let dropped = 0;
  let windowEnd = 0;

  function write(stream: string, line: string): void {
    const now = Date.now();
    if (now >= windowEnd) {
      if (dropped > 0) log.warn("lines that a tool process printed were dropped", { ...args, count: dropped });
      [left, dropped, windowEnd] = [maxLines, 0, now + windowMs];
    }
    if (left === 0) {
      dropped += 1;
      return;
    }
    left -= 1;
    log.info("a tool process printed", { ...args, args: { [stream]: visible(line.slice(0, maxLineLength)) } });
  }

  return (stream, text) => {
    const lines = (rest[stream] + text).split("\n");
    // A line without end is cut here already.
    rest[stream] = (lines.pop() ?? "").slice(0, maxLineLength);
    for (const line of lines) if (line.trim() !== "") write(stream, line);
  };
}
