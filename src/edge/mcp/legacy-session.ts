import { randomBytes } from "node:crypto";
import { type McpClient, mcpClient, unnamedClient } from "../../agents/mcp/mcp-session.ts";

/**
 * Makes the id of a legacy session. It carries what the client reported at its start, so that any replica can serve the session
 * and a restart does not end it. It grants nothing: each request has its token.
 */
export function newLegacySession(initialize: unknown): string {
  const { name, version } = clientIn(initialize);
  const fields = { name, version, random: randomBytes(12).toString("base64url") };
  return Buffer.from(JSON.stringify(fields)).toString("base64url");
}

/** Returns the client that an id carries. */
export function legacyClientOf(mcpSessionId: string): McpClient {
  try {
    return described(JSON.parse(Buffer.from(mcpSessionId, "base64url").toString()));
  } catch {
    return unnamedClient;
  }
}

function clientIn(initialize: unknown): McpClient {
  const params = fieldOf(initialize, "params");
  return described(fieldOf(params, "clientInfo"));
}

/** Over HTTP a legacy client cannot be asked to open a link: its answer would arrive apart from the call. */
function described(info: unknown): McpClient {
  const [name, version] = [fieldOf(info, "name"), fieldOf(info, "version")];
  if (typeof name !== "string") return unnamedClient;
  return mcpClient({ name, version: typeof version === "string" ? version : "" }, undefined);
}

/** Returns a field of JSON of unknown shape. */
export function fieldOf(json: unknown, name: string): unknown {
  return typeof json === "object" && json !== null && Object.hasOwn(json, name)
    ? (json as Record<string, unknown>)[name]
    : undefined;
}
