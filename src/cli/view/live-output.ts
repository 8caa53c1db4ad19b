import type { Screen } from "../terminal/screen.ts";
import { createSafeDecoder, terminalSafe } from "../terminal/terminal-safe.ts";

/** A call's output on stdout: the pieces as they come, and at the end only what they did not say. */
export interface LiveOutput {
  piece(bytes: Uint8Array): void;
  /** The output as the call returned it, or none if it failed. */
  end(output: string, truncated: boolean): void;
}

/** Starts the output of one call. */
export function createLiveOutput(screen: Screen): LiveOutput {
  const safe = { colours: screen.coloured ? "keep" : "drop" } as const;
  const safeDecoder = createSafeDecoder(safe);
  const decoder = new TextDecoder();
  let shown = "";
  return {
    piece(bytes) {
      if (shown.length < comparable) shown += decoder.decode(bytes, { stream: true });
      screen.write(safeDecoder.push(bytes));
    },
    end(output, truncated) {
      screen.write(safeDecoder.end());
      screen.write(terminalSafe(unsaid(output, shown, truncated), safe));
    },
  };
}

/** What of an output was not shown yet. A truncated one that was shown as it came was shown whole. */
export function unsaid(output: string, shown: string, truncated: boolean): string {
  const start = shown.trimEnd();
  if (output.startsWith(start)) {
    const rest = output.slice(start.length);
    if (rest.trim() === "" && shown !== "") return "";
    return shown.endsWith("\n") ? rest.replace(/^\n/, "") : rest;
  }
  return truncated ? "" : `${shown.endsWith("\n") ? "" : "\n"}${output}`;
}

// No output of a call that was not truncated is longer.
const comparable = 1_048_576;
