import type { Position, PrepareRenameResult, WorkspaceEdit } from "vscode-languageserver-protocol";
import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import type { FileChanges } from "./fs/change-file.ts";
import { planQuestion } from "./lsp/code-call.ts";
import { executeEdit, noAction, planEdit } from "./lsp/edit-call.ts";
import { type AskedFile, askAbout, type LanguageClient } from "./lsp/language-client.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { hasOneColumn, oneColumn, positionFields, protocolPosition } from "./lsp/position.ts";

/** Renames a symbol everywhere. The server computes the change, and it is asked, shown and written like that of any other tool. */
export function createLspRename({ servers, changes }: { servers: LanguageServers; changes: FileChanges }): DefinedTool {
  return defineTool({
    name: "lsp_rename",
    version: "2",
    description: [
      "Rename the symbol at a position everywhere in the project, and nothing else that has the same name.",
      "All files change together or none does; files need not have been read.",
    ].join(" "),
    input: z
      .object({
        filePath: filePath.describe("File in the workspace"),
        ...positionFields,
        newName: z.string().min(1).max(1_000).describe("The new name"),
      })
      .refine(hasOneColumn, oneColumn),
    permissions: ["edit", "lsp"],
    destructive: true,
    async plan(input, ctx) {
      const question = await planQuestion(servers, input.filePath, ctx);
      const params = { position: protocolPosition(input), newName: input.newName };
      return await planEdit(
        servers,
        { ...question, title: `rename to ${input.newName}` },
        ctx,
        async (client, file) => {
          await checkPosition(client, file, params);
          return { edit: await askAbout<WorkspaceEdit | null>(client, "textDocument/rename", file, params) };
        },
      );
    },
    execute: (_input, ctx) => executeEdit(changes, ctx.plan, ctx),
  });
}

/** Refuses a position at which the server renames nothing, if it checks positions. */
async function checkPosition(
  client: LanguageClient,
  file: AskedFile,
  { position }: { position: Position },
): Promise<void> {
  const { renameProvider } = client.capabilities;
  if (typeof renameProvider !== "object" || renameProvider.prepareProvider !== true) return;
  const found = await askAbout<PrepareRenameResult | null>(client, "textDocument/prepareRename", file, { position });
  if (found === null) throw noAction("Cannot rename at this position. Name a line and a column inside of the symbol.");
}
