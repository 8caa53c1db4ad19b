import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { RequestError } from "../../core/request-error.ts";

/** Worker processes of one token at one replica. */
export const maxProcesses = 50;

/** Ends a connection after a later one with the same instance ID. */
export const superseded = (instanceId: string) =>
  new RequestError(
    ErrorReason.WORKER_SUPERSEDED,
    `the worker process ${instanceId} has a later connection, and this one ends; give each process its own instance_id`,
    { instance_id: instanceId },
  );

/** Notice to a process whose connection ended that of another one. */
export const twinNotice = (instanceId: string) =>
  `another process has the instance_id ${instanceId}, and its connection was ended; give each process its own`;

/** Sends a worker to another replica. */
export const leavingReplica = () =>
  new RequestError(
    ErrorReason.DRAINING,
    "this replica is going away; connect to another one, or again in a moment, with the same instance_id",
  );

/** Refuses assignments of another store. */
export const storeChanged = (storeId: string) =>
  new RequestError(
    ErrorReason.STORE_CHANGED,
    "the store is another one than that of the held assignments: stop their bodies, and connect without them",
    { store_id: storeId },
  );

/** Refuses one process more of a token. */
export const tooManyProcesses = (principal: string) =>
  new RequestError(
    ErrorReason.QUOTA_EXCEEDED,
    `the token "${principal}" has ${maxProcesses} worker processes at this replica, the limit; stop one, or use another token`,
    { limit: "worker_processes" },
  );
