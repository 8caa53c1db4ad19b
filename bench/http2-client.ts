import { type ClientHttp2Stream, connect, type IncomingHttpHeaders, type IncomingHttpStatusHeader } from "node:http2";
import {
  create,
  type DescMessage,
  type DescMethod,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";

/** One HTTP/2 connection that does as little as a client can, so that what is measured is the server. */
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
}

/** An rpc by its messages. */
export type Rpc<I extends DescMessage, O extends DescMessage> = Pick<DescMethod, "name" | "parent"> & {
  input: I;
  output: O;
};

/** Connects; `headers` are sent with every request. */
export function createHttp2Client(url: string, headers: Readonly<Record<string, string>> = {}): Http2Client {
  const session = connect(url);
  session.on("error", () => undefined); // Its streams tell whoever waits for one.

  const post = ({ parent, name }: Rpc<DescMessage, DescMessage>, type: Record<string, string>, body: Uint8Array) => {
    const path = `/${parent.typeName}/${name}`;
    const stream = session.request({ ":method": "POST", ":path": path, ...type, ...headers });
    stream.end(body);
    return answerOf(stream);
  };

  return {
    async connect(method, request) {
      const { headers, body } = await post(
        method,
        connectHeaders,
        toBinary(method.input, create(method.input, request)),
      );
      if (headers[":status"] === 200) return fromBinary(method.output, body);
      throw new Error(`${method.name} answered ${headers[":status"]}: ${body}`);
    },
    async grpc(method, request) {
      const message = toBinary(method.input, create(method.input, request));
      const { headers, trailers, body } = await post(method, grpcHeaders, frame(message));
      const { "grpc-status": status, "grpc-message": text } = { ...headers, ...trailers };
      if (status === "0") return unframe(body).map((bytes) => fromBinary(method.output, bytes));
      throw new Error(`${method.name} answered gRPC status ${status}: ${text}`);
    },
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

function unframe(body: Buffer): Buffer[] {
  const messages: Buffer[] = [];
  for (let at = 0; at < body.length; ) {
    const end = at + 5 + body.readUInt32BE(at + 1);
    messages.push(body.subarray(at + 5, end));
    at = end;
  }
  return messages;
}
