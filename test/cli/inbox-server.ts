import { EventEmitter, once } from "node:events";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { HandlerContext } from "@connectrpc/connect";
import { type PermissionSettled, PermissionSettledSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type PermissionRequest, PermissionRequestSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { type FakeRoutes, type FakeServer, startFakeServer } from "./fake-server.ts";

/** A server whose open asks the test writes. */
export interface InboxServer extends FakeServer {
  ask(ask: MessageInitShape<typeof PermissionRequestSchema>): void;
  settle(settled: MessageInitShape<typeof PermissionSettledSchema>): void;
  /** Settles a request without an event, as while watchers are disconnected. */
  forget(id: string): void;
}

type News =
  | { case: "permissionAsked"; value: PermissionRequest }
  | { case: "permissionSettled"; value: PermissionSettled };

/** Starts it with no open asks. */
export async function startInboxServer(
  tools: FakeRoutes["tools"] = {},
  permissions: FakeRoutes["permissions"] = {},
): Promise<InboxServer> {
  const open = new Map<string, PermissionRequest>();
  const watchers = new EventEmitter().setMaxListeners(0);
  const sent: News[] = [];

  async function* watchPermissions(_request: unknown, { signal }: HandlerContext) {
    let next = sent.length;
    yield { storeId: "store_1" };
    for (const value of open.values()) yield { event: { event: { case: "permissionAsked", value } } } as const;
    yield { snapshotEnd: true };
    while (!signal.aborted) {
      const event = sent[next];
      if (event === undefined) await once(watchers, "news", { signal });
      else {
        next += 1;
        yield { event: { event } };
      }
    }
  }
  function emit(news: News): void {
    sent.push(news);
    watchers.emit("news");
  }

  const server = await startFakeServer({
    tools,
    permissions: {
      ...permissions,
      watchPermissions,
      rejectPermissions(request) {
        server.seen.emit("rejected", request);
        return {};
      },
    },
    sessions: { getSession: ({ sessionId }) => ({ session: { id: sessionId, title: `Title of ${sessionId}` } }) },
  });
  return {
    ...server,
    ask(init) {
      const value = create(PermissionRequestSchema, init);
      open.set(value.id, value);
      emit({ case: "permissionAsked", value });
    },
    settle(init) {
      const value = create(PermissionSettledSchema, init);
      open.delete(value.permissionId);
      emit({ case: "permissionSettled", value });
    },
    forget: (id) => open.delete(id),
  };
}
