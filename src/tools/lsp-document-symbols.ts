import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import { openQuestion, questionTool } from "./lsp/code-call.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { listOutput } from "./lsp/places.ts";
import { documentSymbols, symbolLine } from "./lsp/questions.ts";

/** Lists the symbols of a file. */
export function createLspDocumentSymbols({ servers }: { servers: LanguageServers }): DefinedTool {
  return defineTool({
    name: "lsp_document_symbols",
    version: "1",
    description: "List the classes, functions, variables and other symbols of a file as an outline, at most 200.",
    input: z.object({ filePath: filePath.describe("File in the workspace") }),
    ...questionTool(servers),
    async execute(_input, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      const symbols = await documentSymbols(client, file, ctx.signal);
      const links = { directory: ctx.workspace.directory, places: symbols.map(({ place }) => place) };
      return listOutput(symbols.map(symbolLine), { what: "symbols", empty: "No symbols found", leftOut: 0, links });
    },
  });
}
