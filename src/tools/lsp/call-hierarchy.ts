import type {
  CallHierarchyIncomingCall,
  CallHierarchyItem,
  CallHierarchyOutgoingCall,
  Position,
} from "vscode-languageserver-protocol";
import { type AskedFile, askAbout, followUp, type LanguageClient } from "./language-client.ts";
import { placeAt, type ResultFilter } from "./places.ts";
import { type ShownSymbol, symbolFields } from "./questions.ts";

/** Side of a function in the call hierarchy: itself, what calls it, what it calls. */
export type CallSide = "prepare" | "incoming" | "outgoing";

/** Lists the functions at a position, their callers, or the functions that they call. */
export async function callHierarchy(
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
  if (side === "incoming") {
    const calls = await followUp<CallHierarchyIncomingCall[] | null>(
      client,
      "callHierarchy/incomingCalls",
      { item },
      signal,
    );
    return (calls ?? []).map(({ from }) => from);
  }
  const calls = await followUp<CallHierarchyOutgoingCall[] | null>(
    client,
    "callHierarchy/outgoingCalls",
    { item },
    signal,
  );
  return (calls ?? []).map(({ to }) => to);
}
