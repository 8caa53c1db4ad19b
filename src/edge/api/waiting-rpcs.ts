import { AgentService } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import { OperatorService } from "../../../gen/opencode/tool/v1/operator_service_pb.ts";
import { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { WorkerService } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { nameOfRpc } from "./rpc.ts";

const { callTool, beginCall } = ToolService.method;

const names = new Set(
  [AgentService, OperatorService, PermissionService, ToolService, WorkerService]
    .flatMap(({ methods }) => methods)
    .filter((method) => method.methodKind !== "unary")
    .concat(callTool, beginCall)
    .map((method) => `/${nameOfRpc(method)}`),
);

/** Returns true for the path of an rpc that stays open while something else happens: a stream, or a call that runs or waits. */
export const isWaitingRpc = (path: string | undefined): boolean => names.has(path ?? "");

/**
 * Waiting rpcs that a connection may have open. The limit of its streams is higher, so that a client whose streams all wait can
 * still cancel and answer on the same connection.
 */
export const maxWaitingRpcs = 1_000;
