import { readdirSync, readFileSync, statfsSync } from "node:fs";
import { emptyUnlessFull, readText } from "../core/read-files.ts";
import type { UsageLimits } from "./layers.ts";

/**
 * Watches what the processes of each command use together. The kernel limits memory only of single processes, the number of
 * processes not at all for root, and the space of a disk not at all.
 */
export interface UsageWatch {
  /**
   * Watches a process and all below it, a tree that none leaves in the sandbox. Calls `onExceeded` with the reason once they exceed
   * a limit. Returns the function that ends the watch.
   */
  watch(first: number, limits: UsageLimits, onExceeded: (reason: string) => void): () => void;
}

interface Watched {
  readonly first: number;
  readonly limits: UsageLimits;
  onExceeded(reason: string): void;
  /** Time that its processes had spent in the kernel at the last look. */
  kernelTicks: number;
  /** Time that they spent there at the last looks, of which earlier ones count less. */
  recentTicks: number;
}

interface WatchState {
  readonly watched: Set<Watched>;
  /** Free space by directory, with which the next look compares. */
  readonly disks: Map<string, FreeSpace>;
  timer: NodeJS.Timeout | undefined;
  /** Looks in a row that saw no processes. */
  blindLooks: number;
}

/** Use of one command at a look. */
interface Use {
  readonly one: Watched;
  readonly processCount: number;
  /** Memory of the processes, with pages that they share counted for each. */
  readonly residentBytes: number;
  /** Memory of files in file systems that belong to the command alone. */
  readonly fileBytes: number;
  readonly processes: readonly ListedProcess[];
}

/** Creates a watch; one look serves all commands. */
export function createUsageWatch(): UsageWatch {
  const state: WatchState = { watched: new Set(), disks: new Map(), timer: undefined, blindLooks: 0 };
  return {
    watch(first, limits, onExceeded) {
      const one: Watched = { first, limits, onExceeded, kernelTicks: 0, recentTicks: 0 };
      state.watched.add(one);
      state.timer ??= setTimeout(look, lookMs, state);
      return () => end(state, one);
    },
  };
}

const lookMs = 300;
/** Time in which a program can take much. */
const closeLookMs = 60;

function end(state: WatchState, one: Watched): void {
  state.watched.delete(one);
  if (state.watched.size > 0) return;
  clearTimeout(state.timer);
  state.timer = undefined;
  state.disks.clear();
}

function look(state: WatchState): void {
  const { isNear, excesses } = lookAt(state);
  state.timer = setTimeout(look, isNear ? closeLookMs : lookMs, state);
  for (const { use, reason } of excesses) {
    if (use === undefined || reason === undefined || !state.watched.has(use.one)) continue;
    end(state, use.one);
    use.one.onExceeded(reason);
  }
}

function lookAt(state: WatchState): {
  isNear: boolean;
  excesses: { use?: Pick<Use, "one">; reason?: string | undefined }[];
} {
  try {
    const uses = usesOf(state.watched);
    const excesses = [
      ...uses.map((use) => ({ use, reason: excess(use) })),
      ...[...directoriesOf(uses)].map((directory) => shortage(state, directory, uses)),
    ];
    state.blindLooks = 0;
    return { isNear: uses.some(isNearLimit) || [...state.disks.values()].some(isScarce), excesses };
  } catch {
    state.blindLooks += 1;
    const all = state.blindLooks < maxBlindLooks ? [] : [...state.watched];
    return { isNear: true, excesses: all.map((one) => ({ use: { one }, reason: blindText })) };
  }
}

/** Looks in a row that see no processes, as without a free descriptor, before commands end: nobody knows what they take. */
const maxBlindLooks = 50;
const blindText = "for seconds the service could not see what its processes take: it may open no more files";

function usesOf(watched: Iterable<Watched>): Use[] {
  const all = listProcesses();
  const children = Map.groupBy(all, ({ parent }) => parent);
  return [...watched].map((one) => {
    const processes = all.filter(({ pid }) => pid === one.first);
    for (const { pid } of processes) processes.push(...(children.get(pid) ?? []));
    const ticks = sum(processes.map(({ kernelTicks }) => kernelTicks));
    one.recentTicks = one.recentTicks * earlierPart + Math.max(0, ticks - one.kernelTicks);
    one.kernelTicks = ticks;
    return {
      ...{ one, processes, processCount: processes.length },
      residentBytes: sum(processes.map(({ residentBytes }) => residentBytes)),
      fileBytes: bytesInMemory(processes.at(-1)?.pid, one.limits.inMemory),
    };
  });
}

/** The clock of the kernel is too coarse for a single look. */
const earlierPart = 0.8;

const sum = (numbers: readonly number[]) => numbers.reduce((total, number) => total + number, 0);

/** Returns the memory that files take in file systems of a command, which one of its processes sees. */
function bytesInMemory(pid: number | undefined, paths: readonly string[]): number {
  return sum(
    paths.map((path) => {
      try {
        const { type, bsize, blocks, bfree, files, ffree } = statfsSync(`/proc/${pid}/root${path}`);
        return type === tmpfs ? (blocks - bfree) * bsize + (files - ffree) * fileEntryBytes : 0;
      } catch {
        return 0;
      }
    }),
  );
}

const tmpfs = 0x01021994;
/** Memory of the kernel for a file without content. */
const fileEntryBytes = 1_024;

function excess({ one, processes, processCount, residentBytes, fileBytes }: Use): string | undefined {
  const { maxProcesses, maxMemoryBytes } = one.limits;
  if (processCount > maxProcesses) return `it had more than ${maxProcesses} processes`;
  // Pages that processes share count for each of them, so a look that costs more decides.
  if (residentBytes + fileBytes <= maxMemoryBytes) return undefined;
  if (sum(processes.map(proportionalBytes)) + fileBytes <= maxMemoryBytes) return undefined;
  const files = fileBytes > 1024 ** 2 ? " and its files in memory" : "";
  return `its processes${files} took more than ${mebibytes(maxMemoryBytes)} of memory; the operator can raise memory_max under [sandbox]`;
}

const mebibytes = (bytes: number) => `${Math.round(bytes / 1024 ** 2)} MiB`;

const isNearLimit = ({ one: { limits }, processCount, residentBytes, fileBytes }: Use) =>
  residentBytes + fileBytes > limits.maxMemoryBytes / 2 || processCount > limits.maxProcesses / 2;

const directoriesOf = (uses: readonly Use[]) => new Set(uses.flatMap(({ one }) => one.limits.directories));

/**
 * Compares the free space of a disk with its reserve. Each time that it has lost some of that, the command that spent the most time in
 * the kernel has exceeded its limit, since files are written there. Others go on.
 */
function shortage({ disks }: WatchState, directory: string, uses: readonly Use[]): { use?: Use; reason?: string } {
  const before = disks.get(directory);
  const now = freeSpaceOf(directory);
  if (now === undefined) return {};
  const loss = before && lostReserve(before, now);
  const writers = uses.filter(({ one }) => one.limits.directories.includes(directory) && one.recentTicks > 0);
  const [use] = writers.toSorted((a, b) => b.one.recentTicks - a.one.recentTicks);
  const isFound = loss !== undefined && use !== undefined;
  disks.set(directory, isFound ? now : comparedNext(before, now));
  return isFound ? { use, reason: `the disk of ${directory} ${loss}, and it went on writing` } : {};
}

/** Free space of a disk, and the part of it that commands leave to others. */
interface FreeSpace {
  readonly freeBytes: number;
  readonly freeFiles: number;
  readonly reservedBytes: number;
  readonly reservedFiles: number;
}

/** At most this much is reserved. */
const maxReserve = { bytes: 1024 ** 3, files: 100_000 };
/** Part of a small disk that is reserved. */
const reservedPart = 1 / 20;

/** Reads the free space of the disk of a directory; undefined if it is gone. */
function freeSpaceOf(directory: string): FreeSpace | undefined {
  try {
    const { bsize, blocks, bavail, files, ffree } = statfsSync(directory);
    return {
      freeBytes: bavail * bsize,
      // Some file systems make files as long as there is space, and report none.
      freeFiles: files === 0 ? Infinity : ffree,
      reservedBytes: Math.min(maxReserve.bytes, blocks * bsize * reservedPart),
      reservedFiles: Math.min(maxReserve.files, files * reservedPart),
    };
  } catch {
    return undefined;
  }
}

/** Checks if so little is left that the reserve may be reached soon. */
const isScarce = ({ freeBytes, freeFiles, reservedBytes, reservedFiles }: FreeSpace) =>
  freeBytes < reservedBytes * 2 || freeFiles < reservedFiles * 2;

/** Describes a disk that has lost some of its reserve since an earlier look; undefined if it has lost none, or little. */
function lostReserve(before: FreeSpace, now: FreeSpace): string | undefined {
  const { freeBytes, freeFiles, reservedBytes, reservedFiles } = now;
  if (freeBytes < reservedBytes && freeBytes < before.freeBytes - reservedBytes * noticedPart)
    return `has less than ${Math.ceil(reservedBytes / 1024 ** 2)} MiB left`;
  if (freeFiles < reservedFiles && freeFiles < before.freeFiles - reservedFiles * noticedPart)
    return `can hold fewer than ${Math.ceil(reservedFiles)} more files`;
  return undefined;
}

/** A loss of a smaller part of the reserve is none yet, so that commands which write little go on. */
const noticedPart = 1 / 16;

/** Returns the state with which the next look compares if nothing was lost: in the reserve small losses add up. */
function comparedNext(before: FreeSpace | undefined, now: FreeSpace): FreeSpace {
  const isInReserve = now.freeBytes < now.reservedBytes || now.freeFiles < now.reservedFiles;
  if (before === undefined || !isInReserve) return now;
  return {
    ...now,
    freeBytes: Math.max(now.freeBytes, before.freeBytes),
    freeFiles: Math.max(now.freeFiles, before.freeFiles),
  };
}

/** A process of this machine. */
interface ListedProcess {
  readonly pid: number;
  readonly parent: number;
  readonly residentBytes: number;
  /** Time in the kernel, its own and that of children which have ended. */
  readonly kernelTicks: number;
}

/** Lists the processes of this machine. */
function listProcesses(): ListedProcess[] {
  return readdirSync("/proc").flatMap((name) => (/^\d+$/.test(name) ? processOf(Number(name)) : []));
}

/** Reads a process; empty if it has ended. */
function processOf(pid: number): ListedProcess[] {
  const stat = readProcess(`/proc/${pid}/stat`);
  if (stat === "") return [];
  // The name, in parentheses, may contain anything.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const field = (number: number) => Number(fields[number]);
  return [{ pid, parent: field(1), residentBytes: field(21) * pageBytes, kernelTicks: field(12) + field(14) }];
}

/** Reads a file of a process, which is empty for one that has ended. */
function readProcess(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    return emptyUnlessFull(error);
  }
}

/** Returns the memory of a process, of shared pages only its share; where that is not readable, without shared pages of files. */
function proportionalBytes({ pid }: ListedProcess): number {
  const [, kib] = /^Pss: +(\d+) kB/m.exec(readText(`/proc/${pid}/smaps_rollup`)) ?? [];
  if (kib !== undefined) return Number(kib) * 1024;
  const [, resident = 0, shared = 0] = readText(`/proc/${pid}/statm`).split(" ").map(Number);
  return (resident - shared) * pageBytes;
}

/** Size of a page on x64, and on most systems with arm64. */
const pageBytes = 4_096;
