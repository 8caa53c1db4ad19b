import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import { ToolFailure } from "../tool/errors.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import { applyEdit, isChange, noChange, replacement, type Wanted } from "./fs/apply-edit.ts";
import type { FileChanges } from "./fs/change-file.ts";
import type { ExistingFile } from "./fs/existing-file.ts";
import { createSearchSteps } from "./fs/search-text.ts";

/** Applies several edits to one file, all in one step or none. */
export function createMultiEdit({ changes }: { changes: FileChanges }): DefinedTool {
  return defineTool({
    name: "multiedit",
    version: "2",
    description: [
      "Make several edits of one file that was read with the read tool, each like the edit tool does it and each on what the",
      "ones before it left. Either all are made or none.",
    ].join(" "),
    input: z.object({
      filePath: filePath.describe("File, absolute or relative to the workspace"),
      edits: z.array(z.object(replacement).refine(isChange, noChange)).min(1).max(200).describe("The edits, in order"),
    }),
    permissions: ["edit"],
    changeForm: "replace",
    destructive: true,
    plan: ({ filePath, edits }, ctx) => changes.plan(filePath, (before, path) => editedAll(path, before, edits), ctx),
    async execute({ edits }, ctx) {
      const { made, metadata } = await changes.execute((before, path) => editedAll(path, before, edits), ctx);
      const count = `${edits.length} ${edits.length === 1 ? "edit" : "edits"}`;
      return {
        output: [`${count} applied successfully.`, ...made.notes].join(" "),
        metadata: { ...metadata, replacements: made.replacements },
      };
    },
  });
}

function editedAll(path: string, before: ExistingFile | undefined, edits: readonly Wanted[]) {
  let now: Pick<ExistingFile, "text" | "isUtf8"> | undefined = before;
  let replacements = 0;
  const notes: string[] = [];
  const steps = createSearchSteps();
  for (const [index, edit] of edits.entries()) {
    const { text, count, ignoring } = whole(() => applyEdit(path, now, edit, steps), index, edits.length);
    now = { text, isUtf8: true };
    replacements += count;
    if (ignoring !== undefined) notes.push(`Edit ${index + 1} was found ignoring ${ignoring}: check it.`);
  }
  return { text: now?.text ?? "", replacements, notes };
}

/** Adds the number of the edit to its error. */
function whole<Result>(make: () => Result, index: number, count: number): Result {
  try {
    return make();
  } catch (cause) {
    if (!(cause instanceof ToolFailure)) throw cause;
    throw new ToolFailure(`Edit ${index + 1} of ${count}: ${cause.message} No edit was applied.`, { cause });
  }
}
