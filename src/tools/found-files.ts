import { lstat } from "node:fs/promises";
import { join } from "node:path";
import type { Ask, Judgement } from "../tool/tool.ts";
import { doubtAbout, type ResolvedPath } from "../tool/workspace.ts";
import type { OpenFolder } from "./open-file.ts";

/** A file that a search found in a folder. */
export interface FoundFile {
  /** Its path from that folder on. */
  name: string;
  absolute: string;
  /** As people and rules see it: relative to the workspace inside it. */
  shown: string;
  otherNames: boolean;
}

/** A file and when it was modified, in milliseconds. */
export type DatedFile = FoundFile & { modified: number };

/** The folder that a search looks through. */
export interface SearchedFolder extends Pick<ResolvedPath, "absolute" | "pattern"> {
  opened: OpenFolder;
}

/** The files of these names, of which nothing is known but that. */
export function named(names: readonly string[], { absolute, pattern }: SearchedFolder): FoundFile[] {
  const [before, shownBefore] = [absolute, pattern].map((path) =>
    path === "." ? "" : path === "/" ? "/" : `${path}/`,
  );
  return names.map((name) => ({ name, absolute: before + name, shown: shownBefore + name, otherNames: false }));
}

/** Only the files that rules allow to read; what they ask about is left out like what they deny. */
export function readable<File extends FoundFile>(files: readonly File[], judge: (ask: Ask) => Judgement): File[] {
  return files.filter(({ absolute, shown, otherNames }) => {
    const doubt = doubtAbout({ absolute, otherNames, isSpecial: false });
    const ask = { permission: "read", patterns: [shown], paths: [absolute], ...doubt };
    return judge(ask).action === "allow";
  });
}

const mostAtOnce = 64;

/** Looks when files were modified, and sorts them by that, the newest first. What is gone by now was not found. */
export async function byDate(files: readonly FoundFile[], { opened }: SearchedFolder): Promise<DatedFile[]> {
  const dated: DatedFile[] = [];
  const ahead = files.values();
  const look = async () => {
    for (const file of ahead) {
      const stats = await lstat(join(opened.path, file.name)).catch(() => undefined);
      if (stats) dated.push({ ...file, modified: stats.mtimeMs, otherNames: stats.nlink > 1 });
    }
  };
  await Promise.all(Array.from({ length: mostAtOnce }, look));
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
