import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { openQuestion, questionTool } from "./lsp/code-call.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { createResultFilter, listOutput, placeLine } from "./lsp/places.ts";
import { positionInput, protocolPosition } from "./lsp/position.ts";
import { findPlaces } from "./lsp/questions.ts";

/** Finds where the symbol at a position is defined. */
export function createLspGotoDefinition({ servers }: { servers: LanguageServers }): DefinedTool {
  return defineTool({
    name: "lsp_goto_definition",
    version: "1",
    description: "Find where the symbol at a position is defined. Returns PATH:LINE:COLUMN: TEXT, counted from 1.",
    input: positionInput,
    ...questionTool(servers),
    async execute(input, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      const filter = createResultFilter(ctx.workspace, ctx.judge);
      const params = { position: protocolPosition(input) };
      const places = await findPlaces(client, file, "textDocument/definition", params, filter, ctx.signal);
      const leftOut = filter.leftOutCount();
      const links = { directory: ctx.workspace.directory, places };
      const texts = { what: "definitions", empty: "No definition found", leftOut, links };
      return listOutput(places.map(placeLine), texts);
    },
  });
}
