import {
  CLIENT_CAPABILITIES_META_KEY,
  CLIENT_INFO_META_KEY,
  type ClientCapabilities,
  type Implementation,
  type Server,
  type ServerContext,
} from "@modelcontextprotocol/server";
import type { McpHold } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { detailOf, reasonOf, type ToolgateApi } from "./toolgate-api.ts";

/** Session in which a client's calls run. */
export interface McpSession {
  readonly sessionId: string;
  /** Time for which this client's calls are held. */
  readonly holdMs: number;
  /** Called with the failure of a request in the session. */
  readonly failed?: (error: unknown) => void;
}

/** Request for a session. */
export interface WantedSession {
  readonly sessionId: string;
  readonly client: McpClient;
  readonly transport: "http" | "stdio";
  /** Workspace that the operator names. */
  readonly workspace?: string | undefined;
  /** Directory in which the client works, on its own machine. */
  readonly place?: string | undefined;
  /** True if the service is on the machine of the client, so that `place` may lie in a workspace. */
  readonly isLocal?: boolean | undefined;
}

/** Creates the session of a client unless it exists: as the token's first agent, in its only workspace if it has one. */
export async function openMcpSession(
  { tools, sessions }: ToolgateApi,
  { sessionId, client, transport, workspace, place = "", isLocal = false }: WantedSession,
): Promise<McpSession> {
  const { agents, workspaces, mcpHolds } = await tools.getServerInfo({});
  const [only, ...others] = workspaces;
  const chosen = workspace ?? (others.length === 0 ? only : undefined) ?? "";
  const directory = isLocal ? place : "";
  const request = {
    sessionId,
    agent: agents[0] ?? "",
    title: client.name === "" ? "MCP client" : client.name,
    metadata: { mcp: { client: client.name, version: client.version, transport } },
    ...(kindOf(client) !== "" && { requester: { kind: kindOf(client), place } }),
  };
  await sessions.createSession({ ...request, workspace: chosen, directory }).catch(async (error: unknown) => {
    // A session that exists keeps its workspace, unless the operator names another one.
    if (workspace !== undefined || reasonOf(error) !== "SESSION_DIFFERS") throw error;
    await sessions.createSession(request).catch(passChildSession);
  });
  return { sessionId, holdMs: holdOf(mcpHolds, client, transport) };
}

/** Accepts a session of the same owner that is a child, such as that of a subagent: it exists. */
function passChildSession(error: unknown): void {
  if (reasonOf(error) !== "SESSION_DIFFERS" || detailOf(error, "field") !== "parent_session_id") throw error;
}

/** Returns the name of a client in the form of a kind of agent; empty for a name that has no such form. */
function kindOf({ name }: McpClient): string {
  return name
    .toLowerCase()
    .replaceAll(/[^a-z0-9._-]+/g, "-")
    .replace(/^[^a-z0-9]+/, "");
}

function holdOf(holds: readonly McpHold[], { name }: McpClient, transport: "http" | "stdio"): number {
  const hold = holds.find(({ client }) => client === name) ?? holds.find(({ client }) => client === "");
  return (transport === "stdio" ? hold?.stdioMs : hold?.httpMs) ?? 50_000;
}

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
