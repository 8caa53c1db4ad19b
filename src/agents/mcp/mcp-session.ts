import type { McpHold } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { detailOf, reasonOf } from "./api-failure.ts";
import type { McpClient } from "./client-identity.ts";
import type { ToolgateApi } from "./toolgate-api.ts";

/** Session in which a client's calls run. */
export interface McpSession {
  readonly sessionId: string;
  /** Time for which this client's calls are held. */
  readonly holdMs: number;
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
