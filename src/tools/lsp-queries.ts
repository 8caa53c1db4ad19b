import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import { openQuestion, questionTool } from "./lsp/code-call.ts";
import { syncFile } from "./lsp/language-client.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import { diagnosticLine, fileDiagnostics, severities } from "./lsp/new-errors.ts";
import { createLineReader, createResultFilter, listOutput, maxResults, placeAt, placeLine } from "./lsp/places.ts";
import { hasOneColumn, oneColumn, positionFields, positionInput, protocolPosition } from "./lsp/position.ts";
import { documentSymbols, findPlaces, hoverText, symbolLine, workspaceSymbols } from "./lsp/questions.ts";

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

/** Shows the type and documentation of what stands at a position. */
export function createLspHover({ servers }: { servers: LanguageServers }): DefinedTool {
  return defineTool({
    name: "lsp_hover",
    version: "1",
    description:
      "Show the type, signature and documentation of the symbol at a position, by the language server of the file.",
    input: positionInput,
    ...questionTool(servers),
    async execute(input, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      const text = await hoverText(client, file, protocolPosition(input), ctx.signal);
      return { output: text ?? "No hover information available", metadata: { server: client.server.name } };
    },
  });
}

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

/** Lists errors and warnings of a file as it is now. */
export function createLspDiagnostics({ servers }: { servers: LanguageServers }): DefinedTool {
  return defineTool({
    name: "lsp_diagnostics",
    version: "1",
    description: "List the errors and warnings of a file as it is on disk now, without a build, at most 200.",
    input: z.object({
      filePath: filePath.describe("File in the workspace"),
      severity: z
        .enum([...severities, "all"])
        .default("all")
        .describe("The only severity to list"),
    }),
    ...questionTool(servers),
    async execute({ severity }, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      const all = await fileDiagnostics(client, file, ctx.signal);
      const found = all.filter((one) => severity === "all" || severities[(one.severity ?? 1) - 1] === severity);
      const sorted = found.toSorted((one, other) => one.range.start.line - other.range.start.line);
      const lines = await createLineReader()(file.path);
      const places = sorted.map(({ range }) => placeAt(file.path, range.start, lines));
      const links = { directory: ctx.workspace.directory, places };
      return listOutput(sorted.map(diagnosticLine), {
        ...{ what: "diagnostics", empty: "No diagnostics found", leftOut: 0, links },
      });
    },
  });
}
