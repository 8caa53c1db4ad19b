import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  connect,
  constants,
  type IncomingHttpHeaders,
  type IncomingHttpStatusHeader,
} from "node:http2";
import {
  create,
  type DescMessage,
  type DescMethod,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import { errorFromJsonBytes } from "@connectrpc/connect/protocol-connect";

/** One HTTP/2 connection that does as little as a client can, so that the figures are those of the server. */
export interface Http2Client {
  /** A unary rpc by the Connect protocol. */
  connect<I extends DescMessage, O extends DescMessage>(
    method: Rpc<I, O>,
    request: MessageInitShape<I>,
  ): Promise<MessageShape<O>>;
  /** An rpc by the gRPC protocol, read to its end: one message if it is unary. */
  grpc<I extends DescMessage, O extends DescMessage>(
    method: Rpc<I, O>,
    request: MessageInitShape<I>,
  ): Promise<MessageShape<O>[]>;
  /** A server stream by the gRPC protocol: each message is handed over as it comes, in its bytes. */
  stream<I extends DescMessage, O extends DescMessage>(
    method: Rpc<I, O>,
    request: MessageInitShape<I>,
    onMessage: (message: Buffer) => void,
  ): Stream;
  /** A stream in both directions by the gRPC protocol; what `send` returns has been encoded, not sent. `onEnd` gets its status. */
  duplex<I extends DescMessage, O extends DescMessage>(
    method: Rpc<I, O>,
    onMessage: (message: Buffer) => void,
    onEnd?: (status: IncomingHttpHeaders) => void,
  ): { send(...requests: MessageInitShape<I>[]): void };
  /** Ends the connection, with what is still open on it. */
  close(): void;
}

/** A server stream that is read. */
export interface Stream {
  /** Resolves at its end; rejects if that is none with status 0. */
  readonly ended: Promise<void>;
  /** Leaves it; `ended` then resolves. */
  cancel(): void;
}

/** An rpc by its messages. */
export type Rpc<I extends DescMessage, O extends DescMessage> = Pick<DescMethod, "name" | "parent"> & {
  input: I;
  output: O;
};

/** Connects; `headers` are sent with every request. */
export function createHttp2Client(url: string, headers: Readonly<Record<string, string>> = {}): Http2Client {
  let current: ClientHttp2Session | undefined;

  /** Returns the connection: a new one after the server has closed it, as between two turns that lie far apart. */
  function session(): ClientHttp2Session {
    if (current !== undefined && !current.closed && !current.destroyed) return current;
    current = connect(url);
    current.on("error", () => undefined); // Its streams report it to their callers.
    return current;
  }

  const post = ({ parent, name }: Rpc<DescMessage, DescMessage>, type: Record<string, string>, body: Uint8Array) => {
    const path = `/${parent.typeName}/${name}`;
    const stream = session().request({ ":method": "POST", ":path": path, ...type, ...headers });
    stream.end(body);
    return stream;
  };

  return {
    async connect(method, request) {
      const message = toBinary(method.input, create(method.input, request));
      const { headers, body } = await answerOf(post(method, connectHeaders, message));
      if (headers[":status"] === 200) return fromBinary(method.output, body);
      const unreadable = new ConnectError(`${method.name} answered ${headers[":status"]}: ${body}`);
      throw errorFromJsonBytes(body, undefined, unreadable);
    },
    async grpc(method, request) {
      const message = toBinary(method.input, create(method.input, request));
      const { headers, trailers, body } = await answerOf(post(method, grpcHeaders, frame(message)));
      checkStatus(method.name, { ...headers, ...trailers });
      const messages: MessageShape<typeof method.output>[] = [];
      createUnframer((bytes) => messages.push(fromBinary(method.output, bytes)))(body);
      return messages;
    },
    stream(method, request, onMessage) {
      const stream = post(method, grpcHeaders, frame(toBinary(method.input, create(method.input, request))));
      let left = false;
      const ended = new Promise<void>((resolve, reject) => {
        const status: IncomingHttpHeaders = {};
        stream.on("response", (headers) => Object.assign(status, headers));
        stream.on("trailers", (trailers) => Object.assign(status, trailers));
        stream.on("data", createUnframer(onMessage));
        stream.on("error", reject);
        stream.on("close", () => {
          try {
            if (!left) checkStatus(method.name, status);
            resolve();
          } catch (error) {
            reject(error);
          }
        });
      });
      return {
        ended,
        cancel() {
          left = true;
          stream.close(constants.NGHTTP2_CANCEL);
        },
      };
    },
    duplex({ parent, name, input }, onMessage, onEnd = () => undefined) {
      const stream = session().request({
        ...{ ":method": "POST", ":path": `/${parent.typeName}/${name}`, ...grpcHeaders, ...headers },
      });
      stream.on("data", createUnframer(onMessage));
      stream.on("trailers", onEnd);
      return {
        send: (...requests) =>
          void stream.write(Buffer.concat(requests.map((request) => frame(toBinary(input, create(input, request)))))),
      };
    },
    close: () => current?.destroy(),
  };
}

const connectHeaders = { "content-type": "application/proto", "connect-protocol-version": "1" };
const grpcHeaders = { "content-type": "application/grpc+proto", te: "trailers" };

interface Answer {
  headers: IncomingHttpHeaders & IncomingHttpStatusHeader;
  trailers: IncomingHttpHeaders;
  body: Buffer;
}

function answerOf(stream: ClientHttp2Stream): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const answer: Answer = { headers: {}, trailers: {}, body: Buffer.alloc(0) };
    const chunks: Buffer[] = [];
    stream.on("response", (headers) => Object.assign(answer, { headers }));
    stream.on("trailers", (trailers) => Object.assign(answer, { trailers }));
    stream.on("data", (chunk: Buffer) => chunks.push(chunk));
    stream.on("end", () => resolve({ ...answer, body: Buffer.concat(chunks) }));
    stream.on("error", reject);
    stream.on("close", () => reject(new Error("the connection was cut before the answer ended")));
  });
}

/** Five bytes stand before each gRPC message: not compressed, and how long. */
function frame(message: Uint8Array): Buffer {
  const framed = Buffer.allocUnsafe(5 + message.length);
  framed.writeUInt8(0, 0);
  framed.writeUInt32BE(message.length, 1);
  framed.set(message, 5);
  return framed;
}

/** Takes the stream's bytes as they come and hands over each message that is complete. */
function createUnframer(onMessage: (message: Buffer) => void): (bytes: Buffer) => void {
  let rest: Buffer = Buffer.alloc(0);
  return (bytes) => {
    rest = rest.length === 0 ? bytes : Buffer.concat([rest, bytes]);
    while (rest.length >= 5) {
      const end = 5 + rest.readUInt32BE(1);
      if (rest.length < end) return;
      onMessage(rest.subarray(5, end));
      rest = rest.subarray(end);
    }
  };
}

function checkStatus(name: string, { "grpc-status": status, "grpc-message": text }: IncomingHttpHeaders): void {
  if (status !== "0") throw new Error(`${name} answered gRPC status ${status}: ${text}`);
}
