import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import { openQuestion, questionTool } from "./lsp/code-call.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { createResultFilter, listOutput, placeLine } from "./lsp/places.ts";
import { hasOneColumn, oneColumn, positionFields, protocolPosition } from "./lsp/position.ts";
import { findPlaces } from "./lsp/questions.ts";

/** Finds all uses of the symbol at a position. */
export function createLspFindReferences({ servers }: { servers: LanguageServers }): DefinedTool {
  return defineTool({
    name: "lsp_find_references",
    version: "1",
    description: [
      "Find all uses of the symbol at a position in the project, unlike a text search only of this symbol.",
      "Returns PATH:LINE:COLUMN: TEXT, counted from 1, at most 200.",
    ].join(" "),
    input: z
      .object({
        filePath: filePath.describe("File in the workspace"),
        ...positionFields,
        includeDeclaration: z.boolean().default(true).describe("Whether the declaration counts as a use"),
      })
      .refine(hasOneColumn, oneColumn),
    ...questionTool(servers),
    async execute(input, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      const filter = createResultFilter(ctx.workspace, ctx.judge);
      const { includeDeclaration } = input;
      const params = { position: protocolPosition(input), context: { includeDeclaration } };
      const places = await findPlaces(client, file, "textDocument/references", params, filter, ctx.signal);
      const leftOut = filter.leftOutCount();
      const links = { directory: ctx.workspace.directory, places };
      return listOutput(places.map(placeLine), { what: "references", empty: "No references found", leftOut, links });
    },
  });
}
