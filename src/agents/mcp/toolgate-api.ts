import { type Client, Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "../../../gen/google/rpc/error_details_pb.ts";
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

/** Returns the reason (ErrorInfo) of a refused rpc; undefined if the service gave none. */
export function reasonOf(error: unknown): string | undefined {
  return error instanceof ConnectError ? error.findDetails(ErrorInfoSchema)[0]?.reason : undefined;
}

/** Returns a field of the details of a refused rpc; undefined without one. */
export function detailOf(error: unknown, name: string): string | undefined {
  return error instanceof ConnectError ? error.findDetails(ErrorInfoSchema)[0]?.metadata[name] : undefined;
}

/** Checks for a lost connection, or a service that asks to try again later: the same request may be repeated. */
export function isLostConnection(error: unknown): boolean {
  if (!(error instanceof ConnectError)) return false;
  if (reasonOf(error) !== undefined) return error.code === Code.Unavailable;
  return [Code.Unavailable, Code.Aborted, Code.Canceled, Code.DeadlineExceeded].includes(error.code);
}

/** Returns the text of a failure for the model, with the reason by which documentation describes it. */
export function apiFailureText(error: unknown): string {
  if (!(error instanceof ConnectError)) return "Toolgate failed unexpectedly; see its log.";
  const reason = reasonOf(error);
  return reason === undefined ? error.rawMessage : `${error.rawMessage} [${reason}]`;
}
