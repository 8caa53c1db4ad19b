/** A length of time, such as `340 ms`, `1.2 s`, `14m 05s`, `2h 05m` or `29d 04h`. */
export function durationOf(ms: number): string {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 10_000) return `${(ms / 1_000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1_000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${twoDigits(seconds % 60)}s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}h ${twoDigits(minutes % 60)}m` : `${Math.floor(hours / 24)}d ${twoDigits(hours % 24)}h`;
}

/** The time left to answer, such as `4:05 left`, `2 h left` or `29 days left`. */
export function timeLeft(ms: number): string {
  if (ms <= 0) return "time is up";
  const seconds = Math.floor(ms / 1_000);
  if (seconds >= 172_800) return `${Math.floor(seconds / 86_400)} days left`;
  if (seconds >= 7_200) return `${Math.floor(seconds / 3_600)} h left`;
  return `${Math.floor(seconds / 60)}:${twoDigits(seconds % 60)} left`;
}

/** A moment in the reader's time zone, such as `2026-11-22 14:05:09`; equal in terminal and console, and it sorts. */
export function momentOf(ms: number): string {
  return new Date(ms).toLocaleString("sv-SE");
}

/** A size, such as `812 bytes`, `12.3 KiB` or `5.0 MiB`. */
export function sizeOf(bytes: number): string {
  if (bytes < 1_024) return `${bytes} bytes`;
  if (bytes < 1_048_576) return `${(bytes / 1_024).toFixed(1)} KiB`;
  return `${(bytes / 1_048_576).toFixed(1)} MiB`;
}

/** A count with its noun, such as `1 call` or `3 calls`. */
export function countOf(count: number | bigint, noun: string): string {
  return `${count} ${noun}${Number(count) === 1 ? "" : "s"}`;
}

const twoDigits = (value: number) => String(value).padStart(2, "0");
