import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";

/** A place in a file that the output of a call names, counted from 1. */
export interface NamedPlace {
  readonly path: string;
  readonly line: number;
  readonly column: number;
  /** The lines around it, with their numbers; empty if there is none. */
  readonly preview: string;
}

/** Reads the places of a completed call from its metadata, in the order of the output, with the directory of their paths. */
export function namedPlacesOf({ state }: Pick<ToolPart, "state">): { directory: string; places: NamedPlace[] } {
  const metadata = state.case === "completed" ? state.value.metadata : undefined;
  const { directory, places } = metadata ?? {};
  const found = Array.isArray(places) ? places : [];
  return { directory: String(directory ?? ""), places: found.flatMap(placeOf) };
}

function placeOf(value: unknown): NamedPlace[] {
  const { path, line, column, preview = "" } = Object(value) as Record<string, unknown>;
  if (typeof path !== "string" || typeof line !== "number" || typeof column !== "number") return [];
  return [{ path, line, column, preview: String(preview) }];
}

/** A place as the output names it, such as `src/shop.ts:12:9`. */
export const placeText = ({ path, line, column }: NamedPlace) => `${path}:${line}:${column}`;
