import { createHash } from "node:crypto";
import { lstat } from "node:fs/promises";
import type { Ask } from "../../core/ask.ts";
import { ToolFailure } from "../../tool/errors.ts";
import { cautionFor, externalAsks } from "../../tool/path-asks.ts";
import type { FileWrite, ToolResult } from "../../tool/tool.ts";
import { type FileChanges, shorten } from "../fs/change-file.ts";
import type { FileChange } from "../fs/diff.ts";
import { type AsideFile, setAside } from "../fs/replace-file.ts";
import type { PatchStep, PatchTarget } from "./verify-patch.ts";

/** Lists the paths of a target: a file that moves has two. */
export const pathsOfTarget = ({ path, to }: PatchTarget) => (to === undefined ? [path] : [path, to]);

/** Makes one ask of each permission, for all files of a change. */
export function asksForSteps(targets: readonly PatchTarget[]): Ask[] {
  const paths = targets.flatMap(pathsOfTarget);
  const outside = paths.flatMap(externalAsks);
  const patterns = [...new Set(outside.flatMap((ask) => ask.patterns))];
  const directories = [...new Set(outside.flatMap((ask) => ask.paths ?? []))];
  const files = targets.map(({ patch, path, to }) => ({
    type: patch.kind,
    filepath: path.absolute,
    ...(to && { movePath: to.absolute }),
  }));
  return [
    ...(outside.length > 0 ? [{ permission: "external_directory", patterns, paths: directories }] : []),
    {
      permission: "edit",
      patterns: paths.map(({ pattern }) => pattern),
      paths: paths.map(({ absolute }) => absolute),
      ...paths.map(cautionFor).find(({ alwaysAsk }) => alwaysAsk !== undefined),
      deletes: targets.filter(({ patch }) => patch.kind === "delete").map(({ path }) => path.pattern),
      metadata: { files },
    },
  ];
}

/** The file that a step writes, and the one that it removes or moves away. */
export function writesOf({ target: { path, to }, place, content }: PatchStep): FileWrite[] {
  const removed = content === undefined || to !== undefined ? [{ path: path.absolute, sha256: undefined }] : [];
  return content === undefined ? removed : [{ path: place.absolute, sha256: contentHash(content) }, ...removed];
}

/** Makes the preview of a change: one diff of all files. */
export function previewOfSteps(steps: readonly PatchStep[]) {
  const paths = steps.flatMap(({ target }) => pathsOfTarget(target)).map(({ pattern }) => pattern);
  return { ...countsOf(steps), diff: diffOf(steps), paths };
}

/** The numbers of lines that all steps together add and remove. */
function countsOf(steps: readonly PatchStep[]): { additions: number; deletions: number } {
  const sum = (pick: (change: FileChange) => number) => steps.reduce((total, { change }) => total + pick(change), 0);
  return { additions: sum(({ additions }) => additions), deletions: sum(({ deletions }) => deletions) };
}

/** Makes the result of a change that was carried out: a line for each file. */
export function resultOfSteps(steps: readonly PatchStep[]): Required<Pick<ToolResult, "output" | "metadata">> {
  const letters = { add: "A", delete: "D", update: "M" };
  const lines = steps.map(({ target: { patch, path, to } }) => {
    const line = `${letters[patch.kind]} ${path.pattern}`;
    return to === undefined ? line : `${line} -> ${to.pattern}`;
  });
  const notes = steps.flatMap(({ place, ignoring }) =>
    ignoring.map((what) => `Lines of ${place.pattern} were found ignoring ${what}: check the result.`),
  );
  return {
    output: ["Success. Updated the following files:", ...lines, ...notes].join("\n"),
    metadata: {
      ...countsOf(steps),
      diff: shorten(diffOf(steps)),
      files: steps.map(({ target: { patch, path, to }, change: { additions, deletions } }) => ({
        type: patch.kind,
        filepath: path.absolute,
        ...(to && { movePath: to.absolute }),
        additions,
        deletions,
      })),
    },
  };
}

const diffOf = (steps: readonly PatchStep[]) =>
  steps.map(({ change: { diff } }) => (diff === "" || diff.endsWith("\n") ? diff : `${diff}\n`)).join("");

/** Returns the SHA-256 of a content, in hex. */
export const contentHash = (content: Uint8Array) => createHash("sha256").update(content).digest("hex");

/** Writes all new content, then removes files. If a step fails, undoes the earlier ones in reverse order. */
export async function carryOut(steps: readonly PatchStep[], changes: Pick<FileChanges, "replace">): Promise<void> {
  const undo: (() => Promise<void>)[] = [];
  const aside: AsideFile[] = [];
  try {
    for (const step of steps) {
      if (step.content === undefined) continue;
      await put(step, changes);
      undo.push(() => undoPut(step, changes));
    }
    for (const { target, before, content } of steps) {
      if (before === undefined || (content !== undefined && target.to === undefined)) continue;
      const file = await setAside(target.path, before.stats);
      aside.push(file);
      undo.push(file.putBack);
    }
  } catch (cause) {
    const failures = await undoAll(undo);
    if (failures.length === 0) throw cause;
    const what = cause instanceof Error ? cause.message : String(cause);
    throw new ToolFailure(`${what}\nSome earlier changes could not be undone: ${failures.join("; ")}`, { cause });
  }
  for (const file of aside) await file.remove();
}

async function put(
  { place, target, before, content = Buffer.of() }: PatchStep,
  { replace }: Pick<FileChanges, "replace">,
): Promise<void> {
  const replaced = target.to === undefined ? before?.stats : undefined;
  await replace(place, replaced, content, before && { like: before.stats });
}

async function undoPut({ place, target, before }: PatchStep, { replace }: Pick<FileChanges, "replace">): Promise<void> {
  const now = await lstat(place.absolute, { bigint: true });
  if (before === undefined || target.to !== undefined) return await (await setAside(place, now)).remove();
  // A replaced file is always text.
  await replace(place, now, Buffer.from(before.mark + (before.text ?? "")));
}

/** Undoes the steps; returns the errors of those that failed. */
async function undoAll(undo: readonly (() => Promise<void>)[]): Promise<string[]> {
  const failures: string[] = [];
  for (const step of undo.toReversed()) {
    await step().catch((error: unknown) => failures.push(error instanceof Error ? error.message : String(error)));
  }
  return failures;
}
