import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { ResolvedPath } from "../tool/path-asks.ts";
import type { DefinedTool } from "../tool/tool.ts";
import type { Workspace } from "../tool/workspace.ts";
import { type FilePatch, PatchSyntaxError, parsePatch } from "./apply-patch/parse-patch.ts";
import {
  asksForSteps,
  carryOut,
  contentHash,
  pathsOfTarget,
  previewOfSteps,
  resultOfSteps,
  writesOf,
} from "./apply-patch/report-steps.ts";
import { checkVersions, type PatchTarget, verifyPatch, versionsOf } from "./apply-patch/verify-patch.ts";
import type { FileChanges } from "./fs/change-file.ts";

/** Changes several files by one patch. The whole patch is verified before the first write; an error undoes earlier writes. */
export function createApplyPatch({ changes }: { changes: FileChanges }): DefinedTool {
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
      const paths = targets.flatMap(pathsOfTarget);
      checkDistinct(paths);
      // Set by inspect: the versions that approvers saw.
      const seen: { versions?: readonly string[] } = {};
      const [first] = paths;
      return {
        title: paths.length === 1 && first ? first.pattern : `${paths.length} files`,
        asks: asksForSteps(targets),
        binds: paths,
        reveals: paths,
        targets,
        seen,
        async inspect() {
          const steps = await verifyPatch(targets, reads);
          seen.versions = versionsOf(steps);
          return { preview: () => previewOfSteps(steps) };
        },
      };
    },
    async execute(_input, { plan: { targets, seen }, beforeWrite, reads, signal }) {
      const paths = targets.flatMap(pathsOfTarget).map(({ absolute }) => absolute);
      return await changes.inTurns(paths, async () => {
        signal.throwIfAborted();
        // Checked first, so that a file that changed after approval is reported as such.
        if (seen.versions !== undefined) await checkVersions(targets, seen.versions);
        const steps = await verifyPatch(targets, reads);
        await beforeWrite(steps.flatMap(writesOf));
        await carryOut(steps, changes);
        for (const { place, content } of steps) {
          if (content !== undefined) await reads.record(place.absolute, contentHash(content));
        }
        return resultOfSteps(steps);
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

function checkDistinct(paths: readonly ResolvedPath[]): void {
  const known = new Set<string>();
  const twice = paths.find(({ absolute }) => known.size === known.add(absolute).size);
  if (twice === undefined) return;
  throw new ToolFailure(`The patch names ${twice.absolute} twice. Put all that happens to a file into one section.`);
}
