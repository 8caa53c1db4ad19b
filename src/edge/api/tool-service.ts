import type { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { beginCallRpc, finishCallRpc } from "./delegated-calls.ts";
import type { ServiceFunctions } from "./rpc.ts";
import { callToolRpc, cancelToolRpc, executeToolRpc, getToolPartRpc, listToolPartsRpc } from "./tool-calls.ts";
import { getServerInfoRpc, getToolRpc, getToolStatsRpc, listToolsRpc, planToolRpc } from "./tool-catalog.ts";
import type { ToolServiceDomain } from "./tool-domain.ts";
import { watchSessionRpc } from "./watch-session.ts";

/** Returns the functions of ToolService, except WatchMany and StreamTools, which need more than its domain. */
export function toolService(
  domain: ToolServiceDomain,
): Omit<ServiceFunctions<typeof ToolService>, "watchMany" | "streamTools"> {
  return {
    listTools: (request, context) => listToolsRpc(domain, request, context),
    getTool: (request, context) => getToolRpc(domain, request, context),
    planTool: (request, context) => planToolRpc(domain, request, context),
    callTool: (request, context) => callToolRpc(domain, request, context),
    executeTool: (request, context) => executeToolRpc(domain, request, context),
    beginCall: (request, context) => beginCallRpc(domain, request, context),
    finishCall: (request, context) => finishCallRpc(domain, request, context),
    cancelTool: (request, context) => cancelToolRpc(domain, request, context),
    getToolPart: (request, context) => getToolPartRpc(domain, request, context),
    listToolParts: (request, context) => listToolPartsRpc(domain, request, context),
    readToolOutput: (request, { principal }) => domain.reader.read(principal, request),
    watchSession: (request, context) => watchSessionRpc(domain, request, context),
    getToolStats: () => getToolStatsRpc(domain),
    getServerInfo: (_request, context) => getServerInfoRpc(domain, context),
  };
}
