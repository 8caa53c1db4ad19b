import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import { openQuestion, questionTool } from "./lsp/code-call.ts";
import { syncFile } from "./lsp/language-client.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { createResultFilter, listOutput, maxResults } from "./lsp/places.ts";
import { symbolLine, workspaceSymbols } from "./lsp/questions.ts";

/** Searches the symbols of a project by name. */
export function createLspWorkspaceSymbols({ servers }: { servers: LanguageServers }): DefinedTool {
  return defineTool({
    name: "lsp_workspace_symbols",
    version: "1",
    description: "Search the symbols of a whole project by a part of their name, at most 200.",
    input: z.object({
      filePath: filePath.describe("Any file of the project, which decides about language and project"),
      query: z.string().max(1_000).describe("Part of the name"),
      limit: z.int().min(1).max(maxResults).default(maxResults).describe("How many symbols to show"),
    }),
    ...questionTool(servers),
    async execute({ query, limit }, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      // Servers load a project when one of its files is opened.
      await syncFile(client, file.path, file.resolve);
      const filter = createResultFilter(ctx.workspace, ctx.judge);
      const symbols = await workspaceSymbols(client, query, filter, ctx.signal);
      const leftOut = filter.leftOutCount();
      const lines = symbols.map(symbolLine);
      const links = { directory: ctx.workspace.directory, places: symbols.map(({ place }) => place) };
      return listOutput(lines, { what: "symbols", empty: "No symbols found", leftOut, max: limit, links });
    },
  });
}
