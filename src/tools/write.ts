import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import type { FileChanges } from "./fs/change-file.ts";
import { type NewErrors, noNewErrors } from "./lsp/new-errors.ts";

/** Writes whole files. An existing file must have been read in its present version, so that no work is overwritten unseen. */
export function createWrite({
  changes,
  errors = noNewErrors,
}: {
  changes: FileChanges;
  errors?: NewErrors;
}): DefinedTool {
  return defineTool({
    name: "write",
    version: "1",
    description: [
      "Write a whole file, creating it and its directories if they are missing.",
      "Read an existing file with the read tool before overwriting it.",
    ].join(" "),
    input: z.object({
      filePath: filePath.describe("File, absolute or relative to the workspace"),
      content: z.string().describe("The whole new content"),
    }),
    permissions: ["edit"],
    changeForm: "replace",
    destructive: true,
    plan: (input, ctx) => changes.plan(input.filePath, (before) => newText(before, input.content), ctx),
    async execute({ content }, ctx) {
      const newErrors = await errors.before(ctx.plan.path, ctx);
      const { metadata } = await changes.execute((before) => newText(before, content), ctx);
      return { output: "Wrote file successfully.", metadata, ...(await newErrors()) };
    },
  });
}

/** Removes a byte order mark from the content if the file has one, since the file's mark is preserved. */
function newText(before: { mark: string } | undefined, content: string): { text: string } {
  const hasMark = before !== undefined && before.mark !== "" && content.startsWith(before.mark);
  return { text: hasMark ? content.slice(1) : content };
}
