import { lstatSync } from "node:fs";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import type { OpenDirectory } from "../../tool/open-file.ts";
import { cautionFor, type ResolvedPath } from "../../tool/path-asks.ts";
import type { Judge } from "../../tool/tool.ts";

/** A file that a search found in a directory. */
export interface FoundFile {
  /** Its path relative to that directory. */
  name: string;
  absolute: string;
  /** The form that people see and rules match: relative inside the workspace. */
  shown: string;
  otherNames: boolean;
}

/** A file with the time of its last modification, in milliseconds. */
export type DatedFile = FoundFile & { modified: number };

/** The directory of a search. */
export interface SearchedDirectory extends Pick<ResolvedPath, "absolute" | "pattern"> {
  opened: OpenDirectory;
}

/** Makes found files of names alone. */
export function named(names: readonly string[], { absolute, pattern }: SearchedDirectory): FoundFile[] {
  const [before, shownBefore] = [absolute, pattern].map((path) =>
    path === "." ? "" : path === "/" ? "/" : `${path}/`,
  );
  return names.map((name) => ({ name, absolute: before + name, shown: shownBefore + name, otherNames: false }));
}

/** Formats a name on one line: a name with control characters is quoted as in JSON. */
export function nameOnOneLine(name: string): string {
  return /\p{Cc}/u.test(name) ? JSON.stringify(name) : name;
}

/** Selects the files that rules allow to read; files that they ask about are left out like denied ones. */
export function readable<File extends FoundFile>(files: readonly File[], judge: Judge): File[] {
  return files.filter(({ absolute, shown, otherNames }) => {
    const caution = cautionFor({ absolute, otherNames, isSpecial: false });
    const ask = { permission: "read", patterns: [shown], paths: [absolute], ...caution };
    return judge(ask).action === "allow";
  });
}

/** Filters files of a directory by whether rules allow to read them. Names decide for nearly all; rules are evaluated for the others. */
export function createReadFilter(searched: SearchedDirectory, judge: Judge) {
  const hints = judge.restrictedNameHints(searched);
  /** Reports whether one of several names, separated by NULs, may be that of a restricted file. */
  const mayBeRestricted = (names: string) => {
    if (hints === undefined || unplain.test(names)) return true;
    const folded = names.toLowerCase();
    return hints.some((hint) => folded.includes(hint));
  };
  return {
    mayBeRestricted,
    mayRead: (name: string) => !mayBeRestricted(name) || readable(named([name], searched), judge).length > 0,
  };
}

const unplain = /[^ -~\0]| {64}/;

const maxConcurrent = 500;

/** Sorts files by modification time, newest first; leaves out those that are gone. */
export async function byDate(files: readonly FoundFile[], { opened }: SearchedDirectory): Promise<DatedFile[]> {
  const dated: DatedFile[] = [];
  for (const [index, file] of files.entries()) {
    // Found a moment ago, each takes microseconds from the cache; the event loop runs in between.
    if (index % maxConcurrent === maxConcurrent - 1) await setImmediate();
    const stats = lstatSync(join(opened.path, file.name), { throwIfNoEntry: false });
    if (stats) dated.push({ ...file, modified: stats.mtimeMs, otherNames: stats.nlink > 1 });
  }
  return dated.sort(newestFirst);
}

/** Compares by date, newest first, then by name. */
export function newestFirst(a: DatedFile, b: DatedFile): number {
  return b.modified - a.modified || (a.absolute < b.absolute ? -1 : 1);
}

/** Makes the notes that the model needs in addition to the results. */
export function searchNotes({ leftOut, stopped }: { leftOut: number; stopped: string | undefined }): string[] {
  const files = leftOut === 1 ? "1 file is" : `${leftOut} files are`;
  return [
    ...(leftOut > 0 ? [`(${files} left out, because reading needs approval. Use the read tool to ask for it.)`] : []),
    ...(stopped === undefined
      ? []
      : [`(The search was stopped because ${stopped}: there may be more. Use a more specific path or pattern.)`]),
  ];
}
