import type {
  CallHierarchyIncomingCall,
  CallHierarchyItem,
  CallHierarchyOutgoingCall,
  Position,
} from "vscode-languageserver-protocol";
import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { DefinedTool, ToolContext } from "../tool/tool.ts";
import { filePath } from "../tool/workspace.ts";
import { openQuestion, questionTool } from "./lsp/code-call.ts";
import { type AskedFile, askAbout, followUp, type LanguageClient, syncFile } from "./lsp/language-client.ts";
import type { LanguageServers } from "./lsp/language-servers.ts";
import {
  createResultFilter,
  leftOutNote,
  linkMetadata,
  maxResults,
  placeAt,
  type ResultFilter,
  type ShownPlace,
} from "./lsp/places.ts";
import { hasOneColumn, positionFields, protocolPosition } from "./lsp/position.ts";
import {
  documentSymbols,
  findPlaces,
  hoverText,
  type ShownSymbol,
  symbolFields,
  workspaceSymbols,
} from "./lsp/questions.ts";

const operations = [
  ...["goToDefinition", "findReferences", "hover", "documentSymbol", "workspaceSymbol"],
  ...["goToImplementation", "prepareCallHierarchy", "incomingCalls", "outgoingCalls"],
] as const;

/** Operations about a whole file or project. */
const withoutPosition = new Set<string>(["documentSymbol", "workspaceSymbol"]);

/** One tool for all questions, in the form of opencode: the result is JSON. */
export function createLsp({ servers }: { servers: LanguageServers }): DefinedTool {
  return defineTool({
    name: "lsp",
    version: "1",
    description: [
      "Ask the language server of a file: definitions, references, implementations, types, symbols and calls.",
      "Returns JSON, with lines and columns counted from 1, at most 200 results.",
    ].join(" "),
    input: z
      .object({
        operation: z.enum(operations).describe("What to ask"),
        filePath: filePath.describe("File in the workspace"),
        ...{ ...positionFields, line: positionFields.line.default(1) },
        query: z.string().max(1_000).default("").describe("For workspaceSymbol: a part of the name"),
      })
      .refine((input) => withoutPosition.has(input.operation) || hasOneColumn(input), {
        error: "Give exactly one of column (counted from 1) and character (counted from 0).",
        path: ["column"],
      }),
    experimental: true,
    ...questionTool(servers),
    async execute(input, ctx) {
      const { client, file } = await openQuestion(servers, ctx, ctx.plan);
      const filter = createResultFilter(ctx.workspace, ctx.judge);
      const { operation, query } = input;
      const found = await answer(client, file, { operation, query, position: protocolPosition(input) }, filter, ctx);
      const leftOut = filter.leftOutCount();
      // Previews are for people.
      const json = JSON.stringify(
        found.slice(0, maxResults),
        (key, value) => (key === "preview" ? undefined : value),
        2,
      );
      const text = found.length === 0 ? `No results found for ${operation}` : json;
      const notes = [
        ...(found.length > maxResults ? [`(The first ${maxResults} of ${found.length} results.)`] : []),
        ...(leftOut > 0 ? [leftOutNote(leftOut)] : []),
      ];
      const links = linkMetadata({ directory: ctx.workspace.directory, places: found.filter(isPlace) }, maxResults);
      return { output: [text, ...notes].join("\n"), metadata: { count: found.length, leftOut, ...links } };
    },
  });
}

async function answer(
  client: LanguageClient,
  file: AskedFile,
  asked: { operation: (typeof operations)[number]; query: string; position: ReturnType<typeof protocolPosition> },
  filter: ResultFilter,
  { signal }: Pick<ToolContext, "signal">,
): Promise<readonly (ShownPlace | { contents: string })[]> {
  const { operation, query, position } = asked;
  const calls = async (side: Parameters<typeof callHierarchy>[2]["side"]) =>
    (await callHierarchy(client, file, { position, side }, filter, signal)).map(flat);
  switch (operation) {
    case "goToDefinition":
      return await findPlaces(client, file, "textDocument/definition", { position }, filter, signal);
    case "goToImplementation":
      return await findPlaces(client, file, "textDocument/implementation", { position }, filter, signal);
    case "findReferences": {
      const params = { position, context: { includeDeclaration: true } };
      return await findPlaces(client, file, "textDocument/references", params, filter, signal);
    }
    case "hover": {
      const text = await hoverText(client, file, position, signal);
      return text === undefined ? [] : [{ contents: text }];
    }
    case "documentSymbol":
      return (await documentSymbols(client, file, signal)).map(flat);
    case "workspaceSymbol":
      // Servers load a project when one of its files is opened.
      await syncFile(client, file.path, file.resolve);
      return (await workspaceSymbols(client, query, filter, signal)).map(flat);
    case "prepareCallHierarchy":
      return await calls("prepare");
    case "incomingCalls":
      return await calls("incoming");
    default:
      return await calls("outgoing");
  }
}

/** Puts the place of a symbol beside its name. */
function flat({ place, depth: _, ...symbol }: ShownSymbol): ShownPlace {
  return { ...symbol, ...place };
}

const isPlace = (found: object): found is ShownPlace => "line" in found;

/** Side of a function in the call hierarchy: itself, what calls it, what it calls. */
type CallSide = "prepare" | "incoming" | "outgoing";

/** Lists the functions at a position, their callers, or the functions that they call. */
async function callHierarchy(
  client: LanguageClient,
  file: AskedFile,
  { position, side }: { position: Position; side: CallSide },
  filter: ResultFilter,
  signal: AbortSignal,
): Promise<ShownSymbol[]> {
  const method = "textDocument/prepareCallHierarchy";
  const items = (await askAbout<CallHierarchyItem[] | null>(client, method, file, { position }, signal)) ?? [];
  const found =
    side === "prepare"
      ? items
      : (await Promise.all(items.map((item) => neighbours(client, item, side, signal)))).flat();
  const symbols: ShownSymbol[] = [];
  for (const item of found) {
    const path = await filter.find(item.uri);
    if (path === undefined) continue;
    const place = placeAt(path, item.selectionRange.start, await filter.lines(path));
    symbols.push({ ...symbolFields(item, item.detail), depth: 0, place });
  }
  return symbols;
}

async function neighbours(
  client: LanguageClient,
  item: CallHierarchyItem,
  side: "incoming" | "outgoing",
  signal: AbortSignal,
): Promise<CallHierarchyItem[]> {
  type Calls = (CallHierarchyIncomingCall | CallHierarchyOutgoingCall)[] | null;
  const calls = await followUp<Calls>(client, `callHierarchy/${side}Calls`, { item }, signal);
  return (calls ?? []).map((call) => ("from" in call ? call.from : call.to));
}
