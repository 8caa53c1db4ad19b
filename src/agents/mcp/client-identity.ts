import {
  CLIENT_CAPABILITIES_META_KEY,
  CLIENT_INFO_META_KEY,
  type ClientCapabilities,
  type Implementation,
  type Server,
  type ServerContext,
} from "@modelcontextprotocol/server";

/** An MCP client, as it describes itself. */
export interface McpClient {
  readonly name: string;
  readonly version: string;
  /** True if the client can show a person a link. */
  readonly opensLinks: boolean;
}

/** A client that has not described itself. */
export const unnamedClient: McpClient = { name: "", version: "", opensLinks: false };

/**
 * Returns the client of a request. Modern clients describe themselves in each request, legacy clients once per connection;
 * `otherwise` is for a legacy request over HTTP, which is served apart from its connection.
 */
export function clientOf(server: Server, { mcpReq: { envelope } }: ServerContext, otherwise: McpClient): McpClient {
  // The SDK checks the envelope, but its type does not name the keys.
  const fields: { [CLIENT_INFO_META_KEY]?: Implementation; [CLIENT_CAPABILITIES_META_KEY]?: ClientCapabilities } =
    envelope ?? {};
  const described = fields[CLIENT_INFO_META_KEY] ?? server.getClientVersion();
  if (described === undefined) return otherwise;
  const capabilities = fields[CLIENT_CAPABILITIES_META_KEY] ?? server.getClientCapabilities();
  return mcpClient(described, capabilities?.elicitation);
}

/** Makes a client of what it reports; its texts are of unknown origin, so that they are cut. */
export function mcpClient({ name, version }: { name: string; version: string }, elicitation: unknown): McpClient {
  const opensLinks = typeof elicitation === "object" && elicitation !== null && "url" in elicitation;
  return { name: name.slice(0, 64), version: version.slice(0, 64), opensLinks };
}
