import { createHash } from "node:crypto";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import type { Tool as OfferedTool } from "@modelcontextprotocol/client";
import { canonicalJson } from "../../core/json.ts";
import { hiddenCharacters } from "../../core/visible.ts";

/** A tool as an MCP server offers it. */
export interface McpDefinition {
  /** Its name at the server. */
  readonly original: string;
  /** The name under which it serves here. */
  readonly name: string;
  /** Everything that reaches models, as canonical JSON; an acceptance holds for exactly this text. */
  readonly text: string;
  readonly description: string;
  readonly inputSchema: JsonObject;
  readonly outputSchema?: JsonObject;
  readonly annotations: JsonObject;
}

/** Reads a definition. What models get of it has no invisible characters, in which instructions could hide. */
export function readDefinition(server: string, offered: OfferedTool): McpDefinition {
  const { name, title, description = "", inputSchema, outputSchema, annotations = {} } = offered;
  const content: JsonObject = JSON.parse(
    JSON.stringify({ name, title, description, inputSchema, outputSchema, annotations }),
  );
  const shown = withoutHidden(content) as typeof content;
  return {
    original: name,
    name: nameOf(server, name),
    text: canonicalJson(content),
    description: [shown.title, shown.description].filter(Boolean).join("\n\n"),
    inputSchema: shown.inputSchema as JsonObject,
    ...(outputSchema && { outputSchema: shown.outputSchema as JsonObject }),
    annotations: shown.annotations as JsonObject,
  };
}

/** Identifies what a server offers. */
export function digestOf(definitions: readonly McpDefinition[]): string {
  return sha256(JSON.stringify(definitions.map(({ text }) => text).sort()));
}

/** Names a tool after the name of the server in the configuration: what a server says of itself names nothing. */
function nameOf(server: string, original: string): string {
  const name = `${server}_${original}`.replaceAll(/[^A-Za-z0-9_-]/g, "_");
  if (name.length <= maxNameLength && name === `${server}_${original}`) return name;
  // Two names must not become one.
  return `${name.slice(0, maxNameLength - hashLength - 1)}_${sha256(original).slice(0, hashLength)}`;
}

/** Removes invisible characters from all texts of a value. */
function withoutHidden(value: JsonValue): JsonValue {
  if (typeof value === "string") return value.replaceAll(hiddenCharacters, "");
  if (Array.isArray(value)) return value.map(withoutHidden);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, part]) => [key.replaceAll(hiddenCharacters, ""), withoutHidden(part)]),
  );
}

const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");
const maxNameLength = 64;
const hashLength = 8;
