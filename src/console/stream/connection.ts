import { type Client, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { type GetServerInfoResponse, ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { createStream, type Stream } from "./stream.ts";

/** The service that this page came from, as somebody whom it knows. */
export interface ConsoleConnection {
  readonly tools: Client<typeof ToolService>;
  readonly permissions: Client<typeof PermissionService>;
  readonly sessions: Client<typeof SessionService>;
  /** What the service is, and who one is to it. */
  readonly server: GetServerInfoResponse;
  /** What happens there, live. */
  readonly stream: Stream;
  /** Whether one has one of these roles; the service itself holds to them, the page only leaves out what would be refused. */
  may(...roles: readonly string[]): boolean;
}

/** Connects with a token, or none; rejects if the service does not take it. */
export async function connectConsole(token: string): Promise<ConsoleConnection> {
  const transport = createConnectTransport({
    baseUrl: location.origin,
    useBinaryFormat: true,
    interceptors: [
      (next) => (request) => {
        if (token !== "") request.header.set("authorization", `Bearer ${token}`);
        return next(request);
      },
    ],
  });
  const tools = createClient(ToolService, transport);
  const server = await tools.getServerInfo({});
  return {
    tools,
    permissions: createClient(PermissionService, transport),
    sessions: createClient(SessionService, transport),
    server,
    stream: createStream(tools, server),
    may: (...roles) => roles.some((role) => server.roles.includes(role)),
  };
}
