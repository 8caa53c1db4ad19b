import type { DescEnum } from "@bufbuild/protobuf";
import { terminalSafe } from "../terminal/terminal-safe.ts";

/** The enum value as a word for people: `PERMISSION_OUTCOME_REJECT` is `reject`. */
export function wordOf(schema: DescEnum, value: number): string {
  return schema.value[value]?.localName.toLowerCase().replaceAll("_", " ") ?? `unknown (${value})`;
}

/** A length of time for people, such as `340 ms`, `1.2 s` or `14m 05s`. */
export function durationOf(ms: number): string {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 10_000) return `${(ms / 1_000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1_000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${twoDigits(seconds % 60)}s`;
  return `${Math.floor(minutes / 60)}h ${twoDigits(minutes % 60)}m`;
}

/** A size for people, such as `812 bytes` or `12.3 KiB`. */
export function sizeOf(bytes: number): string {
  if (bytes < 1_024) return `${bytes} bytes`;
  if (bytes < 1_048_576) return `${(bytes / 1_024).toFixed(1)} KiB`;
  return `${(bytes / 1_048_576).toFixed(1)} MiB`;
}

/** A moment for people, in their own time zone. */
export function momentOf(ms: number): string {
  return new Date(ms).toLocaleString("sv-SE");
}

/** A command line that can be pasted into a shell: each word is quoted if it must be. */
export function commandLine(...words: readonly string[]): string {
  return terminalSafe(words.map(shellWord).join(" "));
}

const twoDigits = (value: number) => String(value).padStart(2, "0");
const shellWord = (word: string) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
