import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { ConnectError, HandlerContext, ServiceImpl } from "@connectrpc/connect";
import type { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import {
  ToolService,
  type Watch,
  WatchEndSchema,
  type WatchManyResponseSchema,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { type Errors, reasonOf } from "../rpc/errors.ts";
import { merge } from "./merge.ts";

type Watches = Pick<ServiceImpl<typeof ToolService>, "watchSession"> &
  Pick<ServiceImpl<typeof PermissionService>, "watchPermissions">;

/** Creates WatchMany over the rpcs of its watches: what they send, merged. */
export function createWatchMany(
  { watchSession, watchPermissions }: Watches,
  { toConnectError }: Pick<Errors, "toConnectError">,
): ServiceImpl<typeof ToolService>["watchMany"] {
  async function* sent({ watch }: Watch, ctx: HandlerContext): AsyncGenerator<Frame> {
    if (watch.case === "session")
      for await (const value of watchSession(watch.value, ctx)) yield { case: "session", value };
    if (watch.case === "permissions")
      for await (const value of watchPermissions(watch.value, ctx)) yield { case: "permissions", value };
  }

  async function* frames(watch: Watch, ctx: HandlerContext): AsyncGenerator<Message, void> {
    const { key } = watch;
    try {
      for await (const frame of sent(watch, ctx)) yield { key, frame };
    } catch (error) {
      // What aborts the request is the end of all of them.
      ctx.signal.throwIfAborted();
      yield { key, frame: { case: "end", value: endOf(toConnectError(error, rpc)) } };
    }
  }

  return async function* watchMany({ watches }, ctx) {
    const leaving = new AbortController();
    const signal = AbortSignal.any([ctx.signal, leaving.signal]);
    const sources = watches.map((watch) => frames(watch, { ...ctx, signal }));
    try {
      yield* merge(sources);
    } finally {
      // One that waits for news ends by the signal, one whose message was not taken by the return.
      leaving.abort();
      await Promise.allSettled(sources.map((source) => source.return()));
    }
  };
}

type Message = MessageInitShape<typeof WatchManyResponseSchema>;
type Frame = NonNullable<Message["frame"]>;

const { watchMany } = ToolService.method;
const rpc = `${watchMany.parent.typeName}/${watchMany.name}`;

function endOf(error: ConnectError) {
  return create(WatchEndSchema, { code: error.code, message: error.rawMessage, ...reasonOf(error) });
}
