/** Connects workers whose `hello` has a hostile schema, and prints the times until they were refused: URL, kind, milliseconds. */
import { once } from "node:events";
import { connect } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { create, fromBinary, type JsonObject, toBinary } from "@bufbuild/protobuf";
import { ToolRegistration, WorkRequestSchema, WorkResponseSchema } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { workerToken } from "./programs.ts";
import { newInstance } from "./raw-worker.ts";

const paceMs = 20;
const nested = (levels: number): JsonObject =>
  levels === 0 ? {} : { type: "object", properties: { a: nested(levels - 1) } };
const schemas: Record<string, () => JsonObject> = {
  ordinary: () => ({ type: "object", properties: { text: { type: "string", pattern: "^[a-z]+$" } } }),
  quantifier: () => ({ type: "object", properties: { text: { type: "string", pattern: "(a?){1000}a{1000}" } } }),
  // Each level of the schema is two of JSON.
  depth: () => nested(500),
  size: () => ({ type: "object", description: "x".repeat(10_000_000) }),
};

const [url = "", kind = "", ms = "0"] = process.argv.slice(2);
const inputSchema = (schemas[kind] ?? schemas.ordinary)?.() ?? {};
const times: number[] = [];
for (const end = performance.now() + Number(ms); performance.now() < end; ) {
  const framed = frame(hello());
  const began = performance.now();
  const isAccepted = await connectOnce(framed);
  times.push(performance.now() - began);
  if (isAccepted !== (kind === "ordinary"))
    throw new Error(`the schema "${kind}" was ${isAccepted ? "accepted" : "refused"}`);
  await delay(paceMs);
}
process.stdout.write(JSON.stringify(times));

function hello(): Uint8Array {
  const tools = [{ name: "hold_0", description: "Does nothing.", inputSchema }];
  const facts = { protocol: 1, instanceId: newInstance(), connection: 1n, worker: "hostile", capacity: 1, resumeMs: 0 };
  return toBinary(
    WorkRequestSchema,
    create(WorkRequestSchema, { message: { case: "hello", value: { ...facts, tools } } }),
  );
}

function frame(message: Uint8Array): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
}

/** Sends one hello; resolves with true if its tool was registered, and false if it or its tool was refused. */
async function connectOnce(framed: Buffer): Promise<boolean> {
  const session = connect(url).on("error", () => undefined);
  const stream = session.request({
    ...{ ":method": "POST", ":path": "/opencode.tool.v1.WorkerService/Work", te: "trailers" },
    ...{ "content-type": "application/grpc+proto", authorization: `Bearer ${workerToken(0)}` },
  });
  const refused = Promise.withResolvers<boolean>();
  const end = () => refused.resolve(false);
  stream.on("response", ({ "grpc-status": status }) => status !== undefined && end());
  stream.on("trailers", end).on("error", end).on("close", end);
  stream.write(framed);
  const isAccepted = await Promise.race([refused.promise, once(stream, "data").then(([data]) => isRegistered(data))]);
  session.destroy();
  return isAccepted;
}

/** Reads the first message, which is `welcome`. */
function isRegistered(data: Buffer): boolean {
  const { message } = fromBinary(WorkResponseSchema, data.subarray(5, 5 + data.readUInt32BE(1)));
  return message.case === "welcome" && message.value.tools[0]?.registration === ToolRegistration.REGISTERED;
}
