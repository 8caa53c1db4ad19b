import { createHash } from "node:crypto";
import * as z from "zod";
import type { Ask } from "../core/ask.ts";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import { cautionFor, externalAsks } from "../tool/path-asks.ts";
import type { ResolvedPath } from "../tool/resolved-path.ts";
import type { Tool } from "../tool/tool.ts";
import type { Workspace } from "../tool/workspace.ts";
import { carryOut } from "./apply-patch/carry-out.ts";
import { type FilePatch, PatchSyntaxError, parsePatch } from "./apply-patch/parse-patch.ts";
import {
  checkVersions,
  type PatchStep,
  type PatchTarget,
  verifyPatch,
  versionsOf,
} from "./apply-patch/verify-patch.ts";
import { type FileChanges, shorten } from "./fs/change-file.ts";
import type { FileChange } from "./fs/diff.ts";

/** Changes several files by one patch. The whole patch is verified before the first write; an error undoes earlier writes. */
export function createApplyPatch({ changes }: { changes: FileChanges }): Tool {
  return defineTool({
    name: "apply_patch",
    version: "1",
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
          const steps = await verifyPatch(targets, reads);
          seen.versions = versionsOf(steps);
          return {
            preview: () => ({ ...countsOf(steps), diff: diffOf(steps), paths: paths.map(({ pattern }) => pattern) }),
          };
        },
      };
    },
    async execute(_input, { plan: { targets, seen }, reads, signal }) {
      const paths = targets.flatMap(pathsOf).map(({ absolute }) => absolute);
      return await changes.inTurns(paths, async () => {
        signal.throwIfAborted();
        // Checked first, so that a file that changed after approval is reported as such.
        if (seen.versions !== undefined) await checkVersions(targets, seen.versions);
        const steps = await verifyPatch(targets, reads);
        await carryOut(steps);
        for (const { place, content } of steps) {
          if (content !== undefined) await reads.record(place.absolute, sha256(content));
        }
        return resultOf(steps);
      });
    },
  });
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

async function resolveAll(patches: readonly FilePatch[], workspace: Workspace): Promise<PatchTarget[]> {
  return await Promise.all(
    patches.map(async (patch) => ({
      patch,
      path: await workspace.resolve(patch.path),
      to: "moveTo" in patch && patch.moveTo !== undefined ? await workspace.resolve(patch.moveTo) : undefined,
    })),
  );
}

const pathsOf = ({ path, to }: PatchTarget) => (to === undefined ? [path] : [path, to]);

function checkDistinct(paths: readonly ResolvedPath[]): void {
  const twice = paths.find(({ absolute }, index) => paths.findIndex((other) => other.absolute === absolute) < index);
  if (twice === undefined) return;
  throw new ToolFailure(`The patch names ${twice.absolute} twice. Put all that happens to a file into one section.`);
}

/** Makes one ask of each permission, for all files of the patch. */
function asksFor(targets: readonly PatchTarget[]): Ask[] {
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
      deletes: targets.filter(({ patch }) => patch.kind === "delete").map(({ path }) => path.pattern),
      metadata: { files },
    },
  ];
}

/** The numbers of lines that all steps together add and remove. */
function countsOf(steps: readonly PatchStep[]): { additions: number; deletions: number } {
  const sum = (pick: (change: FileChange) => number) => steps.reduce((total, { change }) => total + pick(change), 0);
  return { additions: sum(({ additions }) => additions), deletions: sum(({ deletions }) => deletions) };
}

function resultOf(steps: readonly PatchStep[]) {
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

const sha256 = (content: Uint8Array) => createHash("sha256").update(content).digest("hex");
