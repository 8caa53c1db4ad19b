import { ToolFailure } from "../../tool/errors.ts";
import type { PlanContext } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";
import { compare, type FileChange } from "../fs/diff.ts";
import { changedSinceApproval, checkRead, type ExistingFile, readExisting, versionOf } from "../fs/existing-file.ts";
import { applyChunks } from "./apply-chunks.ts";
import type { FilePatch } from "./parse-patch.ts";

/** A section of a patch with resolved paths. */
export interface PatchTarget {
  patch: FilePatch;
  path: PathHandle;
  /** New path of a file that moves. */
  to: PathHandle | undefined;
}

/** The verified change of one file. */
export interface PatchStep {
  target: PatchTarget;
  /** Present version of the file; undefined for a new one. */
  before: ExistingFile | undefined;
  /** Path of the new content. */
  place: PathHandle;
  /** Undefined for a file that is deleted. */
  content: Buffer | undefined;
  change: FileChange;
  ignoring: readonly string[];
}

/** Reads all files and makes the steps; throws one error that lists everything that cannot be done. */
export async function verifyPatch(targets: readonly PatchTarget[], reads: PlanContext["reads"]): Promise<PatchStep[]> {
  const results = await Promise.allSettled(targets.map((target) => verifyOne(target, reads)));
  const failures = results.flatMap((result) => (result.status === "rejected" ? [result.reason] : []));
  const unexpected = failures.find((failure) => !(failure instanceof ToolFailure));
  if (unexpected !== undefined) throw unexpected;
  if (failures.length > 0) {
    const messages = failures.map((failure: ToolFailure) => failure.message);
    throw new ToolFailure(`apply_patch verification failed, and nothing was changed:\n${messages.join("\n")}`);
  }
  return results.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
}

async function verifyOne(target: PatchTarget, reads: PlanContext["reads"]): Promise<PatchStep> {
  const { patch, path, to } = target;
  const before = await readExisting(path);
  if (patch.kind === "add") {
    if (before !== undefined) throw new ToolFailure(`${path.absolute} exists already: use *** Update File.`);
    const change = compare(path.pattern, undefined, patch.content);
    return { target, before, place: path, content: Buffer.from(patch.content), change, ignoring: [] };
  }
  if (before === undefined) throw new ToolFailure(`File not found: ${path.absolute}`);
  await checkRead(path, before, reads);
  if (patch.kind === "delete") {
    const isText = before.isUtf8 && before.text !== undefined;
    const change = isText ? compare(path.pattern, before, "") : { diff: "", additions: 0, deletions: 0 };
    const deleted = { ...change, diff: `deleted ${path.pattern}\n${change.diff}` };
    return { target, before, place: path, content: undefined, change: deleted, ignoring: [] };
  }
  if (to !== undefined && (await readExisting(to)) !== undefined) {
    throw new ToolFailure(`${to.absolute} exists already: delete it first, or move the file elsewhere.`);
  }
  if (before.text === undefined) throw new ToolFailure(`${path.absolute} is too large to patch (over 16 MiB).`);
  if (!before.isUtf8) throw new ToolFailure(`${path.absolute} is not UTF-8 text, so patching it would damage it.`);
  const { text, ignoring } = applyChunks(path.absolute, before.text, patch.chunks);
  const place = to ?? path;
  const { diff, ...counts } = compare(place.pattern, before, text);
  const moved = to === undefined ? "" : `rename from ${path.pattern}\nrename to ${to.pattern}\n`;
  const change = { ...counts, diff: moved + diff };
  return { target, before, place, content: Buffer.from(before.mark + text), change, ignoring };
}

/** Lists the versions of the files that the steps change. */
export const versionsOf = (steps: readonly PatchStep[]) => steps.map(({ before }) => versionOf(before));

/** Throws unless the files still have these versions. */
export async function checkVersions(targets: readonly PatchTarget[], versions: readonly string[]): Promise<void> {
  for (const [index, { path }] of targets.entries()) {
    if (versionOf(await readExisting(path)) !== versions[index]) throw changedSinceApproval(path);
  }
}
