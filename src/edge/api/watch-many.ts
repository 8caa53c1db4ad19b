import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import {
  ToolService,
  type Watch,
  WatchEndSchema,
  type WatchManyResponseSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { EdgeContext } from "./edge-context.ts";
import type { Failures } from "./failures.ts";
import { merge } from "./merge.ts";
import { type RequestFailure, statusNumbers } from "./request-failure.ts";
import { nameOfRpc, type ServiceFunctions } from "./rpc.ts";

type Watches = Pick<ServiceFunctions<typeof ToolService>, "watchSession"> &
  Pick<ServiceFunctions<typeof PermissionService>, "watchPermissions">;

/** Creates WatchMany from the rpcs of its watches: it merges their streams. */
export function createWatchMany(
  { watchSession, watchPermissions }: Watches,
  { failureOf }: Failures,
): ServiceFunctions<typeof ToolService>["watchMany"] {
  async function* framesOf({ watch }: Watch, context: EdgeContext): AsyncGenerator<Frame> {
    if (watch.case === "session")
      for await (const value of watchSession(watch.value, context)) yield { case: "session", value };
    if (watch.case === "permissions")
      for await (const value of watchPermissions(watch.value, context)) yield { case: "permissions", value };
  }

  async function* messagesOf(watch: Watch, context: EdgeContext): AsyncGenerator<WatchManyMessage, void> {
    const { key } = watch;
    try {
      for await (const frame of framesOf(watch, context)) yield { key, frame };
    } catch (error) {
      // An abort of the request ends the whole stream, not this watch.
      context.signal.throwIfAborted();
      yield { key, frame: { case: "end", value: watchEnd(failureOf(error, nameOfRpc(ToolService.method.watchMany))) } };
    }
  }

  return async function* watchMany({ watches, heartbeatMs }, context) {
    const leaving = new AbortController();
    const signal = AbortSignal.any([context.signal, leaving.signal]);
    const own = { ...context, signal, heartbeatMs: heartbeatMs || undefined };
    const sources = watches.map((watch) => messagesOf(watch, own));
    try {
      yield* merge(sources);
    } finally {
      // The signal ends a watch that waits for events; the return ends one whose message was not taken.
      leaving.abort();
      await Promise.allSettled(sources.map((source) => source.return()));
    }
  };
}

type WatchManyMessage = MessageInitShape<typeof WatchManyResponseSchema>;
type Frame = NonNullable<WatchManyMessage["frame"]>;

function watchEnd({ status, message, reason, metadata }: RequestFailure) {
  return create(WatchEndSchema, { code: statusNumbers[status], message, reason, metadata });
}
