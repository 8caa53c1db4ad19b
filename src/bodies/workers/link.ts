import { toBinary } from "@bufbuild/protobuf";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { type WorkerHello, WorkerHelloSchema, type WorkRequest } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { serveBeatingStream } from "../../core/beating-stream.ts";
import type { Outbox } from "../../core/outbox.ts";
import { RequestError } from "../../core/request-error.ts";
import type { WorkerMessage } from "../worker-connection.ts";

/** The end of a connection that a worker reads and writes. */
export interface WorkerPeer {
  /** Receives the first message. Returns the function that receives all others. */
  greet(hello: WorkerHello, outbox: Outbox<WorkerMessage>): Promise<(message: WorkRequest["message"]) => void>;
  /** Called once, when the connection has ended. */
  left(): void;
}

/** Protocol that this service speaks. */
const protocol = 1;
const maxHelloBytes = 512 * 1024;
/** Messages that may wait for a worker until its own are no longer read. */
const maxWaiting = 4_096;

/** Serves one connection: yields the messages to the worker until it leaves, is silent, is superseded, or the signal is aborted. */
export function serveWorker(
  requests: AsyncIterable<WorkRequest>,
  peer: WorkerPeer,
  beatMs: number,
  signal: AbortSignal,
): AsyncGenerator<WorkerMessage> {
  return serveBeatingStream<WorkRequest, WorkerMessage>({
    ...{ requests, signal, beatMs, maxWaiting, silent, beat: { case: "beat", value: {} } },
    async greet({ message }, outbox) {
      const take = await peer.greet(checkedHello(message), outbox);
      return (request) => take(request.message);
    },
    ended: () => peer.left(),
  });
}

function checkedHello(message: WorkRequest["message"]): WorkerHello {
  if (message.case !== "hello")
    throw invalidMessage("message", `the first message of a worker must be hello, not ${message.case}`);
  const hello = message.value;
  if (hello.protocol !== protocol)
    throw new RequestError(
      ErrorReason.WORKER_PROTOCOL,
      `the worker speaks protocol ${hello.protocol}, this service ${protocol}; use a library of this version`,
      { protocol: String(protocol) },
    );
  const { length } = toBinary(WorkerHelloSchema, hello);
  if (length > maxHelloBytes)
    throw new RequestError(
      ErrorReason.REQUEST_TOO_LARGE,
      `hello has ${length} bytes, over the limit of ${maxHelloBytes}; declare fewer or shorter tools`,
      { limit: String(maxHelloBytes) },
    );
  checkRequired(hello);
  return hello;
}

/** Checks what is required of workers, but not of tool processes. */
function checkRequired({ instanceId, connection, worker, tools, capacity, plugins, files }: WorkerHello): void {
  const wrong = [
    [instanceId === "", "hello.instance_id", "make a random one when the process starts"],
    [connection === 0n, "hello.connection", "count the connections of the process, from 1"],
    [worker === "", "hello.worker", "name the fleet"],
    [tools.length === 0 || tools.length > 200, "hello.tools", "declare 1 to 200 tools"],
    [capacity === 0, "hello.capacity", "take at least one body at a time"],
    [plugins.length + files.length > 0, "hello.plugins", "leave out what only tool processes have"],
  ] as const;
  for (const [isWrong, field, next] of wrong)
    if (isWrong) throw invalidMessage(field, `${field} does not fit: ${next}`);
}

/** Refuses a message that a worker may not send. */
export function invalidMessage(field: string, message: string): RequestError {
  return new RequestError(ErrorReason.INVALID_MESSAGE, message, { field });
}

const silent = (ms: number) =>
  new RequestError(
    ErrorReason.WORKER_SILENT,
    `the worker sent no message for ${ms} ms; connect again, and send beat while there is nothing else to send`,
    { ms: String(ms) },
  );
