import { lstatSync } from "node:fs";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { doubtAbout } from "../../tool/path-asks.ts";
import type { Judge } from "../../tool/tool.ts";
import type { ResolvedPath } from "../../tool/workspace.ts";
import type { OpenDirectory } from "./open-file.ts";

/** A file that a search found in a directory. */
export interface FoundFile {
  /** Its path from that directory on. */
  name: string;
  absolute: string;
  /** As people and rules see it: relative to the workspace inside it. */
  shown: string;
  otherNames: boolean;
}

/** A file and when it was modified, in milliseconds. */
export type DatedFile = FoundFile & { modified: number };

/** The directory that a search looks through. */
export interface SearchedDirectory extends Pick<ResolvedPath, "absolute" | "pattern"> {
  opened: OpenDirectory;
}

/** The files of these names, of which nothing is known but that. */
export function named(names: readonly string[], { absolute, pattern }: SearchedDirectory): FoundFile[] {
  const [before, shownBefore] = [absolute, pattern].map((path) =>
    path === "." ? "" : path === "/" ? "/" : `${path}/`,
  );
  return names.map((name) => ({ name, absolute: before + name, shown: shownBefore + name, otherNames: false }));
}

/** A name on one line: with control characters in it, it is quoted as in JSON. */
export function nameOnOneLine(name: string): string {
  return /\p{Cc}/u.test(name) ? JSON.stringify(name) : name;
}

/** Only the files that rules allow to read; what they ask about is left out like what they deny. */
export function readable<File extends FoundFile>(files: readonly File[], judge: Judge): File[] {
  return files.filter(({ absolute, shown, otherNames }) => {
    const doubt = doubtAbout({ absolute, otherNames, isSpecial: false });
    const ask = { permission: "read", patterns: [shown], paths: [absolute], ...doubt };
    return judge(ask).action === "allow";
  });
}

/** Tells which files of a directory rules allow to read. Nearly all it knows by a look at their names; only the others are judged. */
export function createSieve(searched: SearchedDirectory, judge: Judge) {
  const words = judge.readDoubts(searched);
  /** Whether one of several names, with NULs between them, may be that of a file that must not be read. */
  const isDoubtful = (names: string) => {
    if (words === undefined || unplain.test(names)) return true;
    const folded = names.toLowerCase();
    return words.some((word) => folded.includes(word));
  };
  return {
    isDoubtful,
    mayRead: (name: string) => !isDoubtful(name) || readable(named([name], searched), judge).length > 0,
  };
}

const unplain = /[^ -~\0]| {64}/;

const maxConcurrent = 500;

/** Looks when files were modified, and sorts them by that, the newest first. What is gone by now was not found. */
export async function byDate(files: readonly FoundFile[], { opened }: SearchedDirectory): Promise<DatedFile[]> {
  const dated: DatedFile[] = [];
  for (const [index, file] of files.entries()) {
    // They were found a moment ago, so each takes microseconds; others have their turn in between.
    if (index % maxConcurrent === maxConcurrent - 1) await setImmediate();
    const stats = lstatSync(join(opened.path, file.name), { throwIfNoEntry: false });
    if (stats) dated.push({ ...file, modified: stats.mtimeMs, otherNames: stats.nlink > 1 });
  }
  return dated.sort(newestFirst);
}

/** Sorts by date, and files of the same moment by name. */
export function newestFirst(a: DatedFile, b: DatedFile): number {
  return b.modified - a.modified || (a.absolute < b.absolute ? -1 : 1);
}

/** What the model must know besides the results. */
export function searchNotes({ leftOut, stopped }: { leftOut: number; stopped: string | undefined }): string[] {
  const files = leftOut === 1 ? "1 file is" : `${leftOut} files are`;
  return [
    ...(leftOut > 0 ? [`(${files} left out, because reading needs approval. Use the read tool to ask for it.)`] : []),
    ...(stopped === undefined
      ? []
      : [`(The search was stopped because ${stopped}: there may be more. Use a more specific path or pattern.)`]),
  ];
}
