import { createHash } from "node:crypto";
import { lstat } from "node:fs/promises";
import * as z from "zod";
import type { Ask } from "../core/ask.ts";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import { cautionFor, externalAsks } from "../tool/path-asks.ts";
import type { PlanContext, Tool } from "../tool/tool.ts";
import type { ResolvedPath, Workspace } from "../tool/workspace.ts";
import { applyChunks } from "./apply-patch/apply-chunks.ts";
import { type FilePatch, PatchSyntaxError, parsePatch } from "./apply-patch/parse-patch.ts";
import {
  changedSinceApproval,
  checkRead,
  type ExistingFile,
  type FileChanges,
  readExisting,
  shorten,
  versionOf,
} from "./fs/change-file.ts";
import { compare, type FileChange } from "./fs/diff.ts";
import { type AsideFile, replaceFile, setAside } from "./fs/replace-file.ts";

/** Changes several files by one patch. The whole patch is verified before the first write; an error undoes earlier writes. */
export function createApplyPatch({ changes }: { changes: FileChanges }): Tool {
  return defineTool({
    name: "apply_patch",
    description: [
      "Change files by a patch: lines from *** Begin Patch to *** End Patch, with sections *** Add File: PATH (each line begins",
      "with +), *** Delete File: PATH, and *** Update File: PATH (then *** Move to: PATH if it moves), in which @@ or @@ LINE begins",
      'a chunk of lines that begin with " " (kept), "-" (removed) or "+" (added). Files that change must have been read.',
    ].join(" "),
    input: z.object({ patchText: z.string().min(1).transform(parsePatchText).describe("The whole patch") }),
    permissions: ["edit"],
    changeForm: "patch",
    destructive: true,
    async plan({ patchText: patches }, { workspace, reads }) {
      const targets = await resolveAll(patches, workspace);
      const paths = targets.flatMap(pathsOf);
      checkDistinct(paths);
      // Set by inspect: the versions that approvers saw.
      const seen: { versions?: readonly string[] } = {};
      const [first] = paths;
      return {
        title: paths.length === 1 && first ? first.pattern : `${paths.length} files`,
        asks: asksFor(targets),
        binds: paths,
        reveals: paths,
        targets,
        seen,
        async inspect() {
          const steps = await verify(targets, reads);
          seen.versions = versionsOf(steps);
          return { preview: () => ({ diff: diffOf(steps), paths: paths.map(({ pattern }) => pattern) }) };
        },
      };
    },
    async execute(_input, { plan: { targets, seen }, reads, signal }) {
      const paths = targets.flatMap(pathsOf).map(({ absolute }) => absolute);
      return await changes.inTurns(paths, async () => {
        signal.throwIfAborted();
        // Checked first, so that a file that changedSinceApproval after approval is reported as such.
        if (seen.versions !== undefined) await checkVersions(targets, seen.versions);
        const steps = await verify(targets, reads);
        await carryOut(steps);
        for (const { place, content } of steps) {
          if (content !== undefined) await reads.record(place.absolute, sha256(content));
        }
        return resultOf(steps);
      });
    },
  });
}

/** A section of a patch with resolved paths. */
interface Target {
  patch: FilePatch;
  path: ResolvedPath;
  /** New path of a file that moves. */
  to: ResolvedPath | undefined;
}

/** The verified change of one file. */
interface Step {
  target: Target;
  /** Present version of the file; undefined for a new one. */
  before: ExistingFile | undefined;
  /** Path of the new content. */
  place: ResolvedPath;
  /** Undefined for a file that is deleted. */
  content: Buffer | undefined;
  change: FileChange;
  ignoring: readonly string[];
}

function parsePatchText(text: string, ctx: z.RefinementCtx): FilePatch[] {
  try {
    return parsePatch(text);
  } catch (error) {
    if (!(error instanceof PatchSyntaxError)) throw error;
    ctx.addIssue({ code: "custom", message: error.message });
    return z.NEVER;
  }
}

async function resolveAll(patches: readonly FilePatch[], workspace: Workspace): Promise<Target[]> {
  return await Promise.all(
    patches.map(async (patch) => ({
      patch,
      path: await workspace.resolve(patch.path),
      to: "moveTo" in patch && patch.moveTo !== undefined ? await workspace.resolve(patch.moveTo) : undefined,
    })),
  );
}

const pathsOf = ({ path, to }: Target) => (to === undefined ? [path] : [path, to]);

function checkDistinct(paths: readonly ResolvedPath[]): void {
  const twice = paths.find(({ absolute }, index) => paths.findIndex((other) => other.absolute === absolute) < index);
  if (twice === undefined) return;
  throw new ToolFailure(`The patch names ${twice.absolute} twice. Put all that happens to a file into one section.`);
}

/** Makes one ask of each permission, for all files of the patch. */
function asksFor(targets: readonly Target[]): Ask[] {
  const paths = targets.flatMap(pathsOf);
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
      metadata: { files },
    },
  ];
}

/** Reads all files and makes the steps; throws one error that lists everything that cannot be done. */
async function verify(targets: readonly Target[], reads: PlanContext["reads"]): Promise<Step[]> {
  const results = await Promise.allSettled(targets.map((target) => verifyOne(target, reads)));
  const failures = results.flatMap((result) => (result.status === "rejected" ? [result.reason] : []));
  const unexpected = failures.find((failure) => !(failure instanceof ToolFailure));
  if (unexpected !== undefined) throw unexpected;
  if (failures.length > 0) {
    const messages = failures.map((failure: ToolFailure) => failure.message);
    throw new ToolFailure(
      `apply_patch verification failed, and nothing was changedSinceApproval:\n${messages.join("\n")}`,
    );
  }
  return results.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
}

async function verifyOne(target: Target, reads: PlanContext["reads"]): Promise<Step> {
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

const versionsOf = (steps: readonly Step[]) => steps.map(({ before }) => versionOf(before));

async function checkVersions(targets: readonly Target[], versions: readonly string[]): Promise<void> {
  for (const [index, { path }] of targets.entries()) {
    if (versionOf(await readExisting(path)) !== versions[index]) throw changedSinceApproval(path);
  }
}

/** Writes all new content, then removes files. If a step fails, undoes the earlier ones in reverse order. */
async function carryOut(steps: readonly Step[]): Promise<void> {
  const undo: (() => Promise<void>)[] = [];
  const aside: AsideFile[] = [];
  try {
    for (const step of steps) {
      if (step.content === undefined) continue;
      await put(step);
      undo.push(() => undoPut(step));
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

async function put({ place, target, before, content = Buffer.of() }: Step): Promise<void> {
  const replaced = target.to === undefined ? before?.stats : undefined;
  await replaceFile(place, replaced, content, before && { like: before.stats });
}

async function undoPut({ place, target, before }: Step): Promise<void> {
  const now = await lstat(place.absolute, { bigint: true });
  if (before === undefined || target.to !== undefined) return await (await setAside(place, now)).remove();
  // A replaced file is always text.
  await replaceFile(place, now, Buffer.from(before.mark + (before.text ?? "")));
}

/** Undoes the steps; returns the errors of those that failed. */
async function undoAll(undo: readonly (() => Promise<void>)[]): Promise<string[]> {
  const failures: string[] = [];
  for (const step of undo.toReversed()) {
    await step().catch((error: unknown) => failures.push(error instanceof Error ? error.message : String(error)));
  }
  return failures;
}

function resultOf(steps: readonly Step[]) {
  const letters = { add: "A", delete: "D", update: "M" };
  const lines = steps.map(({ target: { patch, path, to } }) => {
    const line = `${letters[patch.kind]} ${path.pattern}`;
    return to === undefined ? line : `${line} -> ${to.pattern}`;
  });
  const notes = steps.flatMap(({ place, ignoring }) =>
    ignoring.map((what) => `Lines of ${place.pattern} were found ignoring ${what}: check the result.`),
  );
  const sum = (pick: (change: FileChange) => number) => steps.reduce((total, { change }) => total + pick(change), 0);
  return {
    output: ["Success. Updated the following files:", ...lines, ...notes].join("\n"),
    metadata: {
      additions: sum(({ additions }) => additions),
      deletions: sum(({ deletions }) => deletions),
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

const diffOf = (steps: readonly Step[]) =>
  steps.map(({ change: { diff } }) => (diff === "" || diff.endsWith("\n") ? diff : `${diff}\n`)).join("");

const sha256 = (content: Uint8Array) => createHash("sha256").update(content).digest("hex");
