import { randomUUID } from "node:crypto";
import { chmodSync, lstatSync, mkdirSync, readdirSync, renameSync } from "node:fs";
import { cp, mkdir, rm, writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { isWithin } from "../../sandbox/is-within.ts";
import type { Covered } from "../../sandbox/layers.ts";
import { isUndecodable, rawPathOf } from "../../sandbox/mount-plan.ts";
import { inDirectory, openDirectory } from "../../tool/open-file.ts";

/** A path that a command made although it may not, and where it is now. */
export interface QuarantinedPath extends Covered {
  /** Canonical path in the quarantine; undefined if it could not be moved there. */
  readonly place: string | undefined;
}

/** The call whose command made the paths. */
export interface QuarantineSource {
  sessionId: string;
  callId: string;
  workspace: string;
}

/** A directory of the service, which no tool can reach, for what commands made although they may not. Nothing in it is removed. */
export interface Quarantine {
  /** Moves paths into a new directory of it, together with a description of them. */
  take(created: readonly Covered[], source: QuarantineSource): Promise<QuarantinedPath[]>;
  /** Moves a path back, without set-ID bits of its files; returns the reason if it cannot. */
  putBack(taken: QuarantinedPath): Promise<string | undefined>;
}

/** Creates the quarantine in a directory; it is made when it is needed. */
export function createQuarantine(directory: string): Quarantine {
  return {
    async take(created, source) {
      const name = `${new Date().toISOString().replaceAll(/[:.]/g, "-")}-${randomUUID().slice(0, 8)}`;
      const files = join(directory, name, "files");
      await mkdir(files, { recursive: true, mode: 0o700 });
      const about = created.map(({ path, reason }) => ({ path, reason, movedTo: placeOf(path, source) }));
      // First, so that a crash leaves no file without a description.
      await writeFile(join(directory, name, "about.json"), `${JSON.stringify({ ...source, files: about }, null, 2)}\n`);
      const taken: QuarantinedPath[] = [];
      for (const covered of created) {
        const place = join(files, placeOf(covered.path, source));
        const isMoved = await move(covered.path, place).catch(() => false);
        taken.push({ ...covered, place: isMoved ? place : undefined });
      }
      return taken;
    },
    async putBack({ path, place }) {
      if (place === undefined) return "it was not moved";
      try {
        clearSetId(place);
        return (await move(place, path)) ? undefined : `${path} exists again`;
      } catch (cause) {
        return cause instanceof Error ? cause.message : String(cause);
      }
    },
  };
}

/** Takes set-ID bits from a file, or those below a directory: nothing that a command left may run as the user of the service. */
function clearSetId(path: string): void {
  const stats = lstatSync(path);
  if (stats.isDirectory()) for (const name of readdirSync(path)) clearSetId(join(path, name));
  if (!stats.isSymbolicLink() && (stats.mode & 0o6000) !== 0) chmodSync(path, stats.mode & 0o1777);
}

/** Returns the path in the quarantine: that in the workspace, or the whole path outside of it. */
function placeOf(path: string, { workspace }: QuarantineSource): string {
  return isWithin(path, workspace) ? relative(workspace, path) : join("outside", path);
}

/** Moves a file or directory to a path that is free; returns false if it is not. A link that replaced a directory is not followed. */
async function move(from: string, to: string): Promise<boolean> {
  if (isBelowNothing(to)) mkdirSync(dirname(to), { recursive: true, mode: 0o700 });
  using source = openDirectory(dirname(from));
  using target = openDirectory(dirname(to));
  const [old, place] = [inDirectory(source, from), inDirectory(target, to)];
  // One whose name is not UTF-8 gets the name under which it is reported.
  if (isUndecodable(from) && !lstatSync(old, { throwIfNoEntry: false })) renameSync(rawPathOf(old), old);
  if (lstatSync(place, { throwIfNoEntry: false })) return false;
  try {
    renameSync(old, place);
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "EXDEV")) throw error;
    const options = {
      recursive: true,
      verbatimSymlinks: true,
      preserveTimestamps: true,
      errorOnExist: true,
      force: false,
    };
    await cp(old, place, options);
    await rm(old, { recursive: true });
  }
  return true;
}

const isBelowNothing = (path: string) => lstatSync(dirname(path), { throwIfNoEntry: false }) === undefined;
