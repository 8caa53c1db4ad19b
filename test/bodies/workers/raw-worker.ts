import { randomBytes } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  type WorkerHelloSchema,
  type WorkerReportSchema,
  type WorkerStart,
  type WorkerToolSchema,
  type WorkRequest,
  WorkRequestSchema,
  type WorkResponse,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { WorkerService } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import { clientOf } from "../../e2e/clients.ts";
import type { Service } from "../../e2e/service.ts";

type WorkerSends = NonNullable<MessageInitShape<typeof WorkRequestSchema>["message"]>;
type ServiceSends = WorkResponse["message"];
type Received<C extends ServiceSends["case"]> = Extract<ServiceSends, { case: C }>["value"];
type Report = NonNullable<MessageInitShape<typeof WorkerReportSchema>["report"]>;

/** A worker whose every message a test chooses, over the generated client. */
export interface RawWorker {
  readonly instanceId: string;
  send(message: WorkerSends): void;
  report(start: Pick<WorkerStart, "assignment">, report: Report): void;
  /** Reports a result with an output. */
  complete(start: Pick<WorkerStart, "assignment">, output?: string): void;
  /** Resolves with the next message of a kind that was not taken before. */
  next<C extends Exclude<ServiceSends["case"], undefined>>(name: C): Promise<Received<C>>;
  /** Messages of a kind that were not taken. */
  untaken(name: ServiceSends["case"]): number;
  /** Resolves with the error that ends the stream; undefined if it ends without one. */
  readonly ended: Promise<unknown>;
  /** Cuts the line. */
  cut(): void;
}

/** Its hello: what is left out has a default. */
export type RawHello = MessageInitShape<typeof WorkerHelloSchema> & { token?: string };

export const newInstance = () => `wrk_${randomBytes(16).toString("base64url")}`;

/** A tool of the test workers, which asks for its own name by the field `text`. */
export const echoTool = (name = "ci_echo", fields: MessageInitShape<typeof WorkerToolSchema> = {}) => ({
  name,
  description: "Returns the text.",
  inputSchema: { type: "object", properties: { text: { type: "string" } }, required: ["text"] },
  permissions: [{ permission: name, patterns: ["{text}"], always: ["{text}"] }],
  ...fields,
});

/** Connects a worker, and waits for its welcome. */
export async function connectWorker(service: Pick<Service, "url">, hello: RawHello = {}) {
  const worker = openWorker(service, hello);
  const failed = worker.ended.then((error) => {
    throw error;
  });
  // Later it has nothing to report to.
  failed.catch(() => undefined);
  const welcome = await Promise.race([worker.next("welcome"), failed]);
  return { ...worker, welcome };
}

/** Opens the stream of a worker. */
export function openWorker(
  { url }: Pick<Service, "url">,
  { token = "ci-worker-token-for-tests", ...hello }: RawHello,
): RawWorker {
  const line = new AbortController();
  const sent: WorkRequest[] = [];
  const received: ServiceSends[] = [];
  let wakeSender = () => {};
  let wakeReaders = () => {};
  const instanceId = hello.instanceId ?? newInstance();

  const send: RawWorker["send"] = (message) => {
    sent.push(create(WorkRequestSchema, { message }));
    wakeSender();
  };

  async function* requests() {
    for (;;) {
      for (let next = sent.shift(); next; next = sent.shift()) yield next;
      await new Promise<void>((resolve) => {
        wakeSender = resolve;
      });
    }
  }

  async function read(): Promise<void> {
    for await (const { message } of clientOf(WorkerService, url, token).work(requests(), { signal: line.signal })) {
      if (message.case === "beat") send({ case: "beat", value: {} });
      else received.push(message);
      wakeReaders();
    }
  }

  send({
    case: "hello",
    value: {
      ...{ protocol: 1, instanceId, connection: 1n, worker: "ci", capacity: 4, resumeMs: 10_000 },
      tools: [echoTool()],
      ...hello,
    },
  });
  const ended = read().then(
    () => undefined,
    (error: unknown) => error,
  );
  const report: RawWorker["report"] = ({ assignment }, each) =>
    send({ case: "report", value: { assignment, report: each } });
  return {
    ...{ instanceId, send, report, ended },
    complete: (start, output = "done") =>
      report(start, { case: "result", value: { outcome: { case: "completed", value: { output } } } }),
    async next(name) {
      for (;;) {
        const index = received.findIndex((message) => message.case === name);
        if (index >= 0) return received.splice(index, 1)[0]?.value as never;
        await new Promise<void>((resolve) => {
          const before = wakeReaders;
          wakeReaders = () => {
            before();
            resolve();
          };
        });
      }
    },
    untaken: (name) => received.filter((message) => message.case === name).length,
    cut: () => line.abort(),
  };
}
