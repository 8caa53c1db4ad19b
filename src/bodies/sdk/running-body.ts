import { create, type DescMessage, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import {
  type WorkerAnswer,
  type WorkerBodyRequestSchema,
  WorkerReportSchema,
  type WorkerStart,
  type WorkRequestSchema,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { ToolFailure } from "../../tool/errors.ts";

/** Sends one message to the service; resolves when there is capacity for more. */
export type Send = (message: MessageInitShape<typeof WorkRequestSchema>["message"]) => Promise<void>;

/** An entered body, as its context sees it. */
export interface RunningBody {
  readonly start: WorkerStart;
  readonly signal: AbortSignal;
  /** Sends a report; resolves when there is capacity for more. Sends nothing after the body has ended. */
  report(report: MessageInitShape<typeof WorkerReportSchema>["report"]): Promise<void>;
  /** Sends a request and waits for the answer. */
  request(request: MessageInitShape<typeof WorkerBodyRequestSchema>["request"]): Promise<WorkerAnswer["answer"]>;
  /** Sends bytes of a blob: 0 is the output. */
  write(blob: number, data: Uint8Array): Promise<void>;
  /** Number of bytes of the output that were sent. */
  writtenBytes(): number;
}

/** The same as its owner sees it. */
export interface OpenBody extends RunningBody {
  readonly requests: Map<number, PromiseWithResolvers<WorkerAnswer["answer"]>>;
  /** Aborts its signal and its requests. */
  stop(cause: Error): void;
  /** Sends nothing more. */
  close(): void;
  /** Sends the end, once; nothing follows it. */
  finish(report: MessageInitShape<typeof WorkerReportSchema>["report"]): void;
}

/** Refuses a message that the service would not take: it would end the connection, which all bodies share. */
export function checkedSize<Desc extends DescMessage>(
  schema: Desc,
  message: MessageInitShape<Desc>,
): MessageInitShape<Desc> {
  const { length } = toBinary(schema, create(schema, message));
  if (length <= maxMessageBytes) return message;
  throw new ToolFailure(
    `A message of the tool has ${length} bytes, at most ${maxMessageBytes} are allowed. Return or report less, or write it as output.`,
  );
}

const maxMessageBytes = 1_000_000;

/** Largest piece of bytes in one message. */
const maxPieceBytes = 262_144;

/** Opens a body; `forget` reports whether it was still known when it ends. */
export function openBody(start: WorkerStart, send: Send, forget: () => boolean): OpenBody {
  const { assignment } = start;
  const controller = new AbortController();
  const requests: OpenBody["requests"] = new Map();
  const sent = new Map<number, number>();
  let isOver = false;
  let lastRequest = 0;
  const report: OpenBody["report"] = async (value) => {
    if (isOver || !value) return;
    await send({ case: "report", value: { assignment, report: value } });
  };
  return {
    ...{ start, requests, report, signal: controller.signal },
    stop(cause) {
      controller.abort(cause);
      for (const waiting of requests.values()) waiting.reject(cause);
    },
    close() {
      isOver = true;
    },
    async request(request) {
      const number = lastRequest + 1;
      const value = { case: "request", value: { number, ...(request && { request }) } } as const;
      checkedSize(WorkerReportSchema, { report: value });
      lastRequest = number;
      const waiting = Promise.withResolvers<WorkerAnswer["answer"]>();
      // A body need not await its request.
      waiting.promise.catch(() => undefined);
      requests.set(number, waiting);
      await report(value);
      return await waiting.promise;
    },
    async write(blob, data) {
      for (let at = 0; at < data.length; at += maxPieceBytes) {
        // A copy, which `slice` of a Buffer is not: the caller may reuse its buffer.
        const piece = new Uint8Array(data.subarray(at, at + maxPieceBytes));
        const offset = sent.get(blob) ?? 0;
        sent.set(blob, offset + piece.length);
        await report({ case: "output", value: { blob, offset: BigInt(offset), data: piece } });
      }
    },
    writtenBytes: () => sent.get(0) ?? 0,
    finish(value) {
      if (!forget()) return;
      void report(value);
      isOver = true;
    },
  };
}
