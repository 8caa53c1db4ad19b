import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import { applyEdit, isChange, noChange, replacement } from "./fs/apply-edit.ts";
import type { FileChanges } from "./fs/change-file.ts";
import { type NewErrors, noNewErrors } from "./lsp/new-errors.ts";

/** Replaces a part of a file: the given text, line for line, in one place or, if asked, in all. */
export function createEditTool({
  changes,
  errors = noNewErrors,
}: {
  changes: FileChanges;
  errors?: NewErrors;
}): DefinedTool {
  return defineTool({
    name: "edit",
    version: "2",
    description: [
      "Replace oldString by newString in a file that was read with the read tool. oldString must occur once, or set replaceAll;",
      "give it as it stands in the file, without the line numbers of read. An empty oldString makes a new file.",
    ].join(" "),
    input: z
      .object({ filePath: filePath.describe("File, absolute or relative to the workspace"), ...replacement })
      .refine(isChange, noChange),
    permissions: ["edit"],
    changeForm: "replace",
    destructive: true,
    plan: (input, ctx) => changes.plan(input.filePath, (before, path) => applyEdit(path, before, input), ctx),
    async execute(input, ctx) {
      const newErrors = await errors.before(ctx.plan.path, ctx);
      const { made, metadata } = await changes.execute((before, path) => applyEdit(path, before, input), ctx);
      const { count, ignoring } = made;
      const how = ignoring === undefined ? "" : ` oldString was found ignoring ${ignoring}: check the result.`;
      return {
        output: `Edit applied successfully (${count} ${count === 1 ? "replacement" : "replacements"}).${how}`,
        metadata: { ...metadata, replacements: count },
        ...(await newErrors()),
      };
    },
  });
}
