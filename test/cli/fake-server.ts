import { EventEmitter, once } from "node:events";
import { createServer, type ServerHttp2Session } from "node:http2";
import type { AddressInfo } from "node:net";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type Code, ConnectError, type HandlerContext, type ServiceImpl } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { type SessionEvent, SessionEventSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import type { PermissionResponse } from "../../gen/opencode/tool/v1/tool_pb.ts";
import {
  type CancelToolRequest,
  type ExecuteToolRequest,
  ToolService,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";

/** The services as far as a client sees them: one log, served from any number, which the test writes. */
export interface FakeServer {
  url: string;
  /** The requests it received. */
  executed: ExecuteToolRequest[];
  cancelled: CancelToolRequest[];
  replies: PermissionResponse[];
  /** The tokens that came with requests. */
  tokens: Set<string>;
  /** Emits "execute", "cancel" and "reply". */
  seen: EventEmitter;
  /** Appends to the log. */
  log(...events: EventInit[]): void;
  /** Cuts all connections, as a crash would. */
  cut(): void;
  close(): Promise<void>;
}

/** The event to emit. */
export type EventInit = NonNullable<MessageInitShape<typeof SessionEventSchema>["event"]>;

/** Handlers that replace the default ones. */
export interface FakeRoutes {
  tools?: Partial<ServiceImpl<typeof ToolService>>;
  permissions?: Partial<ServiceImpl<typeof PermissionService>>;
  sessions?: Partial<ServiceImpl<typeof SessionService>>;
}

/** An rpc error as the server makes it. */
export function refused(
  code: Code,
  reason: string,
  message: string,
  metadata: Record<string, string> = {},
): ConnectError {
  return new ConnectError(message, code, undefined, [
    { desc: ErrorInfoSchema, value: { reason, domain: "opencode.tool.v1", metadata } },
  ]);
}

/** Starts the fake on a free port. */
export async function startFakeServer(routes: FakeRoutes = {}): Promise<FakeServer> {
  const events: SessionEvent[] = [];
  const news = new EventEmitter().setMaxListeners(0);
  const seen = new EventEmitter();
  const connections = new Set<ServerHttp2Session>();
  const fake: Omit<FakeServer, "url" | "close"> = {
    executed: [],
    cancelled: [],
    replies: [],
    tokens: new Set(),
    seen,
    log(...added) {
      for (const event of added) {
        events.push(
          create(SessionEventSchema, { seq: BigInt(events.length + 1), time: Date.now(), sessionId: "ses_1", event }),
        );
      }
      news.emit("news");
    },
    cut() {
      for (const connection of connections) connection.destroy();
    },
  };

  async function* follow(afterSeq: bigint, { signal }: HandlerContext) {
    yield { storeId: "store_1", lastSeq: afterSeq };
    for (let next = Number(afterSeq); !signal.aborted; ) {
      const event = events[next];
      if (event) {
        next += 1;
        yield { event, lastSeq: event.seq };
        continue;
      }
      await once(news, "news", { signal });
    }
  }

  const adapter = connectNodeAdapter({
    routes(router) {
      router.service(ToolService, {
        async *executeTool(request, context) {
          fake.executed.push(request);
          seen.emit("execute", request);
          for await (const frame of follow(request.afterSeq, context)) {
            yield frame;
            const state = frame.event?.event.case === "part" ? frame.event.event.value.state.case : undefined;
            if (state === "completed" || state === "error") return;
          }
        },
        watchSession: ({ afterSeq }, context) => follow(afterSeq, context),
        cancelTool(request) {
          fake.cancelled.push(request);
          seen.emit("cancel", request);
          return {};
        },
        ...routes.tools,
      });
      router.service(PermissionService, {
        respondToPermission(response) {
          fake.replies.push(response);
          seen.emit("reply", response);
          return {};
        },
        ...routes.permissions,
      });
      router.service(SessionService, {
        createSession: ({ sessionId }) => ({ session: { id: sessionId }, storeId: "store_1" }),
        ...routes.sessions,
      });
    },
    interceptors: [
      (next) => (request) => {
        const token = request.header.get("authorization");
        if (token) fake.tokens.add(token);
        return next(request);
      },
    ],
  });
  const server = createServer(adapter).on("session", (connection) => {
    connections.add(connection);
    connection.once("close", () => connections.delete(connection));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  return {
    ...fake,
    url: `http://127.0.0.1:${port}`,
    async close() {
      fake.cut();
      server.close();
      await once(server, "close");
    },
  };
}
