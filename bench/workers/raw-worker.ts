import { randomBytes } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http2";
import { fromBinary, type MessageInitShape } from "@bufbuild/protobuf";
import {
  type WorkerHelloSchema,
  type WorkRequestSchema,
  type WorkResponse,
  WorkResponseSchema,
} from "../../gen/opencode/tool/v1/worker_pb.ts";
import { WorkerService } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import { createHttp2Client } from "../http2-client.ts";
import { workerToken } from "./programs.ts";

/** The connection of a worker without an SDK: many of them fit into this process. */
export interface RawWorker {
  send(message: NonNullable<MessageInitShape<typeof WorkRequestSchema>["message"]>): void;
  close(): void;
}

/** Properties that distinguish workers: the number of their token, whose tool they bring, and what they hold. */
export interface RawHello {
  readonly token: number;
  readonly instanceId: string;
  readonly hello?: MessageInitShape<typeof WorkerHelloSchema>;
}

export const newInstance = () => `wrk_${randomBytes(16).toString("base64url")}`;

/** Connects a worker, which answers beats, and resolves when it is welcome; `onMessage` gets all other messages. */
export async function connectRaw(
  url: string,
  { token, instanceId, hello }: RawHello,
  onMessage: (message: WorkResponse["message"]) => void = () => undefined,
): Promise<RawWorker> {
  const client = createHttp2Client(url, { authorization: `Bearer ${workerToken(token)}` });
  const welcome = Promise.withResolvers<void>();
  const refused = ({ "grpc-message": text }: IncomingHttpHeaders) => welcome.reject(new Error(`refused: ${text}`));
  const send: RawWorker["send"] = (message) => stream.send({ message });
  const stream = client.duplex(
    WorkerService.method.work,
    (bytes) => {
      const { message } = fromBinary(WorkResponseSchema, bytes);
      if (message.case === "beat") send({ case: "beat", value: {} });
      else if (message.case === "welcome") welcome.resolve();
      else onMessage(message);
    },
    refused,
  );
  send({
    case: "hello",
    value: {
      ...{ protocol: 1, instanceId, connection: 1n, worker: "raw", capacity: 100, resumeMs: 60_000 },
      tools: [{ name: `hold_${token}`, description: "Runs until it is let go.", inputSchema: { type: "object" } }],
      ...hello,
    },
  });
  await welcome.promise;
  return { send, close: client.close };
}
