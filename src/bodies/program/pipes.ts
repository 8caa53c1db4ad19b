import { createReadStream, createWriteStream } from "node:fs";
import { Socket } from "node:net";
import { create } from "@bufbuild/protobuf";
import { sizeDelimitedDecodeStream, sizeDelimitedEncode } from "@bufbuild/protobuf/wire";
import { WorkRequestSchema, type WorkResponse, WorkResponseSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { Send } from "../sdk/running-body.ts";

/** The connection to the service. */
export interface ServicePipes {
  /** Messages of the service; ends with its pipe. */
  readonly messages: AsyncIterable<WorkResponse>;
  readonly send: Send;
}

const maxMessageBytes = 16 * 1_048_576;

/** Opens file descriptors 3 and 4. The process exits when the service closes one of them. */
export function openPipes(): ServicePipes {
  // Sockets do not block a thread of the pool while nothing comes; Bun has none for an open descriptor.
  const isBun = process.versions.bun !== undefined;
  const input = isBun ? createReadStream("", { fd: 3 }) : new Socket({ fd: 3, readable: true, writable: false });
  const output = isBun ? createWriteStream("", { fd: 4 }) : new Socket({ fd: 4, readable: false, writable: true });
  const end = () => process.exit();
  input.on("error", end);
  output.on("error", end);
  return {
    messages: sizeDelimitedDecodeStream(WorkResponseSchema, input, { readMaxBytes: maxMessageBytes }),
    send(message) {
      const { promise, resolve } = Promise.withResolvers<void>();
      output.write(
        sizeDelimitedEncode(WorkRequestSchema, create(WorkRequestSchema, { ...(message && { message }) })),
        () => resolve(),
      );
      return promise;
    },
  };
}
