import { once } from "node:events";
import { createServer, type Http2Session } from "node:http2";
import { clone, create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError, createContextKey, createContextValues } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import {
  type WorkerHello,
  WorkerHelloSchema,
  type WorkRequest,
  WorkRequestSchema,
  type WorkResponse,
  WorkResponseSchema,
} from "../../gen/opencode/tool/v1/worker_pb.ts";
import { WorkerService } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import { connect } from "../../src/client/client.ts";
import { createOutbox, type Outbox } from "../../src/core/outbox.ts";

type FromWorker = WorkRequest["message"];
type FromService = WorkResponse["message"];
type ToService = NonNullable<MessageInitShape<typeof WorkRequestSchema>["message"]>;
type ToWorker = NonNullable<MessageInitShape<typeof WorkResponseSchema>["message"]>;

/** Outcome for a message: forwarded, dropped, or held until `release`. */
export type Passage = "pass" | "drop" | "hold";

/** One connection of the worker under test. */
export interface KitConnection {
  /** As the worker sent it. */
  readonly hello: WorkerHello;
  isOpen: boolean;
  /** The service has sent `welcome`, and the worker gets it. */
  isWelcome: boolean;
  /** Sends a message to the worker in place of the service. */
  toWorker(message: ToWorker): void;
  /** Sends a message to the service in place of the worker. */
  toService(message: ToService): void;
  /** Ends it as a broken network does. */
  cut(): void;
}

/** A message that came, before any rule changed it. */
export type Seen =
  | { readonly connection: KitConnection; readonly from: "worker"; readonly message: FromWorker }
  | { readonly connection: KitConnection; readonly from: "service"; readonly message: FromService };

/** Rules of a case for the messages of its worker. */
export interface WireRules {
  /** Address of the service. */
  target: string;
  /** New connections are refused. */
  isClosed: boolean;
  /** Changes `hello` before the service gets it. */
  changeHello(hello: WorkerHello): void;
  /** Changes what the worker reads. */
  changeForWorker(message: FromService): void;
  fromWorker(message: FromWorker, connection: KitConnection): Passage;
  fromService(message: FromService, connection: KitConnection): Passage;
}

/** A wire between one worker and the service: it reads each message, and can hold, drop, add and cut. */
export interface KitWire {
  readonly url: string;
  readonly rules: WireRules;
  readonly connections: readonly KitConnection[];
  readonly seen: readonly Seen[];
  /** Forwards what was held, in its order. */
  release(): void;
  /** Cuts all connections. */
  cut(): void;
  close(): Promise<void>;
}

const sessionKey = createContextKey<Http2Session | undefined>(undefined);
const cutOff = () => new ConnectError("the line was cut", Code.Unavailable);

/** Lays a wire. */
export async function layKitWire(target: string): Promise<KitWire> {
  const connections: KitConnection[] = [];
  const seen: Seen[] = [];
  let held: (() => void)[] = [];
  const rules: WireRules = {
    ...{ target, isClosed: false, changeHello: () => undefined, changeForWorker: () => undefined },
    ...{ fromWorker: () => "pass" as const, fromService: () => "pass" as const },
  };

  function pass(passage: Passage, forward: () => void): void {
    if (passage === "pass") forward();
    if (passage === "hold") held.push(forward);
  }

  /** Forwards what the worker sends, from its hello on. */
  async function read(
    requests: AsyncIterable<WorkRequest>,
    up: Outbox<WorkRequest>,
    down: Outbox<WorkResponse>,
    cut: () => void,
    opened: (connection: KitConnection) => void,
  ): Promise<void> {
    let connection: KitConnection | undefined;
    for await (const { message } of requests) {
      const forward = () => up.send(create(WorkRequestSchema, { message }));
      if (connection === undefined) {
        if (message.case !== "hello") throw new ConnectError("the first message must be hello", Code.InvalidArgument);
        const hello = clone(WorkerHelloSchema, message.value);
        connection = {
          ...{ hello, isOpen: true, isWelcome: false, cut },
          toWorker: (each) => down.send(create(WorkResponseSchema, { message: each })),
          toService: (each) => up.send(create(WorkRequestSchema, { message: each })),
        };
        connections.push(connection);
        seen.push({ connection, from: "worker", message });
        rules.changeHello(message.value);
        forward();
        opened(connection);
        continue;
      }
      seen.push({ connection, from: "worker", message });
      pass(rules.fromWorker(message, connection), forward);
    }
  }

  async function* work(requests: AsyncIterable<WorkRequest>, token: string, session: Http2Session | undefined) {
    if (rules.isClosed) throw cutOff();
    const up = createOutbox<WorkRequest>();
    const down = createOutbox<WorkResponse>();
    const client = connect({ url: rules.target, token });
    let connection: KitConnection | undefined;
    const cut = () => {
      down.end(cutOff());
      up.end();
      client.close();
      session?.destroy();
    };
    read(requests, up, down, cut, (opened) => {
      connection = opened;
      forwardAnswers(opened).then(
        () => down.end(),
        (error: unknown) => down.end(error instanceof Error ? error : cutOff()),
      );
    }).then(
      () => up.end(),
      () => cut(),
    );
    async function forwardAnswers(to: KitConnection): Promise<void> {
      for await (const { message } of client.workers.work(up.messages(), { timeoutMs: 0 })) {
        seen.push({ connection: to, from: "service", message });
        pass(rules.fromService(message, to), () => {
          if (message.case === "welcome") to.isWelcome = true;
          rules.changeForWorker(message);
          down.send(create(WorkResponseSchema, { message }));
        });
      }
    }
    try {
      yield* down.messages();
    } finally {
      if (connection) connection.isOpen = false;
      up.end();
      client.close();
    }
  }

  const server = createServer(
    connectNodeAdapter({
      routes: (router) =>
        router.service(WorkerService, {
          work: (requests, { requestHeader, values }) =>
            work(requests, (requestHeader.get("authorization") ?? "").replace(/^Bearer /, ""), values.get(sessionKey)),
          listWorkers: () => ({}),
        }),
      contextValues: (request) =>
        createContextValues().set(sessionKey, "stream" in request ? request.stream.session : undefined),
    }),
  );
  const sessions = new Set<Http2Session>();
  server.on("session", (session) => sessions.add(session.on("close", () => sessions.delete(session))));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  const cutAll = () => {
    for (const { isOpen, cut } of connections) if (isOpen) cut();
  };
  return {
    url: `http://127.0.0.1:${typeof address === "object" ? address?.port : 0}`,
    ...{ rules, connections, seen, cut: cutAll },
    release() {
      const waiting = held;
      held = [];
      for (const forward of waiting) forward();
    },
    async close() {
      rules.isClosed = true;
      cutAll();
      for (const session of sessions) session.destroy();
      server.close();
      await once(server, "close");
    },
  };
}
