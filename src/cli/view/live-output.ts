import type { Screen } from "../terminal/screen.ts";
import { createSafeDecoder, terminalSafe } from "../terminal/terminal-safe.ts";

/** Writes a call's output to stdout: pieces as they arrive, and at the end only the rest. */
export interface LiveOutput {
  piece(bytes: Uint8Array): void;
  /** Writes the rest of the output that the call returned; `decorate` adds links to the safe text. */
  end(output: string, truncated: boolean, decorate?: (safeText: string) => string): void;
}

/** Creates the output of one call. */
export function createLiveOutput(screen: Screen): LiveOutput {
  const safe = { colours: screen.coloured ? "keep" : "drop" } as const;
  const safeDecoder = createSafeDecoder(safe);
  const decoder = new TextDecoder();
  let shown = "";
  return {
    piece(bytes) {
      if (shown.length < maxComparedLength) shown += decoder.decode(bytes, { stream: true });
      screen.write(safeDecoder.push(bytes));
    },
    end(output, truncated, decorate = (safeText) => safeText) {
      screen.write(safeDecoder.end());
      screen.write(decorate(terminalSafe(remainingOutput(output, shown, truncated), safe)));
    },
  };
}

/** The part of an output that was not shown yet. A truncated output that was streamed was shown whole. */
export function remainingOutput(output: string, shown: string, truncated: boolean): string {
  const start = shown.trimEnd();
  if (output.startsWith(start)) {
    const rest = output.slice(start.length);
    if (rest.trim() === "" && shown !== "") return "";
    return shown.endsWith("\n") ? rest.replace(/^\n/, "") : rest;
  }
  return truncated ? "" : `${shown.endsWith("\n") ? "" : "\n"}${output}`;
}

// Outputs that are not truncated are shorter.
const maxComparedLength = 1_048_576;
