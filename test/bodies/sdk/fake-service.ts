import { once } from "node:events";
import { createServer } from "node:http2";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { ErrorInfoSchema } from "../../../gen/google/rpc/error_details_pb.ts";
import {
  ToolRegistration,
  type WorkerHello,
  type WorkRequest,
  type WorkResponse,
  WorkResponseSchema,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { WorkerService } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";

type Message = NonNullable<MessageInitShape<typeof WorkResponseSchema>["message"]>;

/** One connection of a worker, as the service sees it. */
export interface WorkerLine {
  readonly hello: WorkerHello;
  send(message: Message): void;
  /** Waits for the next message of a kind; skips others. */
  next<C extends WorkRequest["message"]["case"]>(
    name: C,
  ): Promise<Extract<WorkRequest["message"], { case: C }> extends { value: infer V } ? V : never>;
  /** Messages that came and were not taken by `next`, without beats. */
  rest(): string[];
  /** Ends the connection as a lost one. */
  cut(): void;
}

/** A service that does what a test says. */
export interface FakeService {
  readonly url: string;
  /** Waits for the next connection and answers its hello; a refusal is sent instead. */
  accept(welcome?: {
    silenceMs?: number;
    resumeMs?: number;
    windowBytes?: number;
    refusal?: string;
  }): Promise<WorkerLine>;
  close(): void;
}

/** A queue that is awaited. */
function createQueue<T>() {
  const items: T[] = [];
  let wake = () => {};
  let isEnded = false;
  return {
    items,
    push(item: T): void {
      items.push(item);
      wake();
    },
    end(): void {
      isEnded = true;
      wake();
    },
    async *[Symbol.asyncIterator]() {
      for (;;) {
        for (let item = items.shift(); item !== undefined; item = items.shift()) yield item;
        if (isEnded) return;
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    },
  };
}

interface Pending {
  readonly hello: WorkerHello;
  readonly requests: ReturnType<typeof createQueue<WorkRequest>>;
  readonly responses: ReturnType<typeof createQueue<WorkResponse | Error>>;
}

/** Starts it on a free port. */
export async function startFakeService(): Promise<FakeService> {
  const pending = createQueue<Pending>();
  const lines = pending[Symbol.asyncIterator]();
  async function* work(requests: AsyncIterable<WorkRequest>) {
    const line = { requests: createQueue<WorkRequest>(), responses: createQueue<WorkResponse | Error>() };
    void (async () => {
      for await (const request of requests) {
        if (request.message.case === "hello") pending.push({ ...line, hello: request.message.value });
        else line.requests.push(request);
      }
    })().catch(() => undefined);
    for await (const response of line.responses) {
      if (response instanceof Error) throw response;
      yield response;
    }
  }
  const server = createServer(
    connectNodeAdapter({ routes: (router) => router.service(WorkerService, { work, listWorkers: () => ({}) }) }),
  );
  const sessions = new Set<{ destroy(): void }>();
  server.on("session", (session) => sessions.add(session));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  return {
    url: `http://127.0.0.1:${typeof address === "object" ? address?.port : 0}`,
    async accept({ silenceMs = 60_000, resumeMs = 60_000, windowBytes = 1_048_576, refusal } = {}) {
      const { value } = await lines.next();
      if (!value) throw new Error("no connection came");
      const { hello, requests, responses } = value;
      const send = (message: Message) => responses.push(create(WorkResponseSchema, { message }));
      if (refusal === undefined) {
        const tools = hello.tools.map(({ name }) => ({ name, registration: ToolRegistration.REGISTERED }));
        const limits = { beatMs: silenceMs / 2, silenceMs, resumeMs, windowBytes };
        send({ case: "welcome", value: { storeId: "store_1", ...limits, tools } });
      } else {
        const info = { desc: ErrorInfoSchema, value: { reason: refusal, domain: "opencode.tool.v1" } };
        responses.push(new ConnectError("refused", Code.FailedPrecondition, undefined, [info]));
      }
      return {
        ...{ hello, send },
        async next(name) {
          for await (const { message } of requests) if (message.case === name) return message.value as never;
          throw new Error("the connection ended");
        },
        rest: () => requests.items.flatMap(({ message }) => (message.case === "beat" ? [] : [String(message.case)])),
        cut: () => responses.push(new ConnectError("cut", Code.Unavailable)),
      };
    },
    close() {
      for (const session of sessions) session.destroy();
      server.close();
    },
  };
}
