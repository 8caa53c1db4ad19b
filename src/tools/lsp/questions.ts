import type {
  DocumentSymbol,
  Hover,
  Location,
  LocationLink,
  MarkedString,
  Position,
  SymbolInformation,
  WorkspaceSymbol,
} from "vscode-languageserver-protocol";
import { visible } from "../../core/visible.ts";
import { nameOnOneLine } from "../fs/found-files.ts";
import { type AskedFile, askAbout, askProject, type CodeMethod, type LanguageClient } from "./language-client.ts";
import {
  createLineReader,
  maxResults,
  type PlaceWithText,
  placeAt,
  type ResultFilter,
  type ShownPlace,
  shownPlaces,
} from "./places.ts";

/** Returns what a server shows about a position; undefined if it shows nothing. */
export async function hoverText(
  client: LanguageClient,
  file: AskedFile,
  position: Position,
  signal: AbortSignal,
): Promise<string | undefined> {
  const hover = await askAbout<Hover | null>(client, "textDocument/hover", file, { position }, signal);
  const contents = hover?.contents ?? [];
  const parts: readonly (MarkedString | { kind: string; value: string })[] = Array.isArray(contents)
    ? contents
    : [contents];
  const text = parts
    .map(markup)
    .filter((part) => part !== "")
    .join("\n\n");
  return text === "" ? undefined : visible(text);
}

function markup(part: MarkedString | { kind: string; value: string }): string {
  if (typeof part === "string") return part.trim();
  return ("language" in part ? `\`\`\`${part.language}\n${part.value}\n\`\`\`` : part.value).trim();
}

type Found = Location | (Location | LocationLink)[] | null;

/** Asks for places that have to do with a position. */
export async function findPlaces(
  client: LanguageClient,
  file: AskedFile,
  method: CodeMethod,
  params: { position: Position; context?: { includeDeclaration: boolean } },
  filter: ResultFilter,
  signal: AbortSignal,
): Promise<PlaceWithText[]> {
  const found = await askAbout<Found>(client, method, file, params, signal);
  return await shownPlaces(found === null ? [] : Array.isArray(found) ? found : [found], filter);
}

/** A symbol, for people and models. */
export interface ShownSymbol {
  readonly name: string;
  readonly kind: string;
  readonly container?: string;
  /** Depth below the symbols of the file. */
  readonly depth: number;
  readonly place: ShownPlace;
}

/** Lists the symbols of a file, each one followed by those in it. */
export async function documentSymbols(
  client: LanguageClient,
  file: AskedFile,
  signal: AbortSignal,
): Promise<ShownSymbol[]> {
  const method = "textDocument/documentSymbol";
  const found = await askAbout<(DocumentSymbol | SymbolInformation)[] | null>(client, method, file, {}, signal);
  const { path } = file;
  const lines = await createLineReader()(path);
  const flatten = (symbols: readonly (DocumentSymbol | SymbolInformation)[], depth: number): ShownSymbol[] =>
    symbols.flatMap((symbol) => {
      const { start } = "location" in symbol ? symbol.location.range : symbol.selectionRange;
      const container = "location" in symbol ? symbol.containerName : undefined;
      const place = placeAt(path, start, lines);
      return [
        { ...symbolFields(symbol, container), depth, place },
        ...flatten(("children" in symbol && symbol.children) || [], depth + 1),
      ];
    });
  return flatten(found ?? [], 0);
}

/** Searches the symbols of the project by name. */
export async function workspaceSymbols(
  client: LanguageClient,
  query: string,
  filter: ResultFilter,
  signal: AbortSignal,
): Promise<ShownSymbol[]> {
  const found = await askProject<(SymbolInformation | WorkspaceSymbol)[] | null>(
    client,
    "workspace/symbol",
    { query },
    signal,
  );
  const symbols: ShownSymbol[] = [];
  for (const symbol of found ?? []) {
    const { location } = symbol;
    const path = await filter.find(location.uri);
    if (path === undefined) continue;
    const start = "range" in location ? location.range.start : { line: 0, character: 0 };
    const place = placeAt(path, start, symbols.length < maxResults ? await filter.lines(path) : []);
    symbols.push({ ...symbolFields(symbol, symbol.containerName), depth: 0, place });
  }
  return symbols;
}

/** Makes the fields of a symbol that are text of the server. */
export function symbolFields({ name, kind }: Pick<SymbolInformation, "name" | "kind">, container: string | undefined) {
  return {
    name: nameOnOneLine(visible(name)),
    kind: symbolKinds[kind - 1] ?? "Unknown",
    ...(container && { container: nameOnOneLine(visible(container)) }),
  };
}

/** Formats a symbol on one line. */
export function symbolLine({ name, kind, container, depth, place: { path, line, column } }: ShownSymbol): string {
  const where = container === undefined ? "" : ` (in ${container})`;
  return `${"  ".repeat(depth)}${name} (${kind})${where} - ${nameOnOneLine(path)}:${line}:${column}`;
}

/** Kinds of symbols of the protocol, from 1 on. */
const symbolKinds = [
  ...["File", "Module", "Namespace", "Package", "Class", "Method", "Property", "Field", "Constructor", "Enum"],
  ...["Interface", "Function", "Variable", "Constant", "String", "Number", "Boolean", "Array", "Object", "Key"],
  ...["Null", "EnumMember", "Struct", "Event", "Operator", "TypeParameter"],
];
