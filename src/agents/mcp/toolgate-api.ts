import type { Client } from "@connectrpc/connect";
import type { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import type { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";

/** Rpcs on which the MCP server works: over a connection to the service, or called directly inside it. */
export interface ToolgateApi {
  readonly tools: Pick<
    Client<typeof ToolService>,
    "getServerInfo" | "listTools" | "callTool" | "cancelTool" | "getToolPart" | "readToolOutput" | "watchSession"
  >;
  readonly sessions: Pick<Client<typeof SessionService>, "createSession">;
}
