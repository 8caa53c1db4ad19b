/**
 * A server under test of connectconformance: the edge with its guard, listener and all its limits, and ConformanceService on it.
 * The first argument is the file of the service's descriptors. Its settings come on stdin, its address goes to stdout.
 */
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { create, createFileRegistry, fromBinary, type Message, toBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { readLimits } from "../../src/config/schema.ts";
import { createFailures, type Failures } from "../../src/edge/api/failures.ts";
import { RequestFailure } from "../../src/edge/api/request-failure.ts";
import { createEdgeLimits } from "../../src/edge/api/rpc.ts";
import { createConnectionCaps } from "../../src/edge/http/connection-caps.ts";
import { createHttpGuard } from "../../src/edge/http/guard.ts";
import { dispatch } from "../../src/edge/http/handler.ts";
import { createListener } from "../../src/edge/http/listener.ts";
import { createByteBudget } from "../../src/edge/http/socket-limits.ts";
import { connectFailure, createRefuse } from "../../src/edge/rpc/errors.ts";
import { serveRpcs } from "../../src/edge/rpc/rpc-door.ts";
import { conformanceRpcs, DefinedError } from "./service.ts";

/** A refusal of the edge without its ErrorInfo. */
class Stripped extends RequestFailure {}

const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(process.argv[2] ?? "")));
const service = registry.getService("connectrpc.conformance.v1.ConformanceService");
if (service === undefined) throw new Error("the descriptors lack ConformanceService");

const request = (await readMessage("ServerCompatRequest")) as ServerCompatRequest;
const { cert, key } = request.serverCreds ?? {};
const text = (bytes: Uint8Array) => Buffer.from(bytes).toString();
const config = {
  listen: { host: "127.0.0.1", port: 0 },
  hosts: [],
  origins: [],
  tls:
    request.useTls && cert !== undefined && key !== undefined
      ? {
          cert: text(cert),
          key: text(key),
          clientCa: request.clientTlsCert.length === 0 ? undefined : text(request.clientTlsCert),
        }
      : undefined,
};
const log = (message: string, fields?: { error?: unknown }) =>
  void process.stderr.write(`${message} ${fields?.error instanceof Error ? fields.error.stack : ""}\n`);
const logger = { debug: log, info: log, warn: log, error: log };
const product = createFailures({ log: logger, newId: () => "1", fromLibrary: connectFailure });
/**
 * The suite compares all details of an error, and its protos have no google.rpc.ErrorInfo, so that no test case can expect one.
 * This removes it from the edge's own refusals, and fails a test case whose refusal has no reason.
 * test/edge/refusals.test.ts reads the ErrorInfo as it is sent.
 */
const failures: Failures = {
  failureOf(...thrown) {
    const failure = product.failureOf(...thrown);
    if (failure instanceof DefinedError || failure instanceof Stripped || failure.status === "canceled") return failure;
    const hasReason = failure.reason !== ErrorReason.UNSPECIFIED;
    if (!hasReason) log(`a refusal has no reason: ${failure.message}`);
    return new Stripped(hasReason ? failure.status : "data_loss", failure.message);
  },
};
const refuse = createRefuse(failures);
const limits = readLimits(
  request.messageReceiveLimit === 0 ? {} : { input_bytes: 1_024, request_bytes: request.messageReceiveLimit },
);
const principal = {
  ...{ id: "conformance", roles: new Set<never>(), agents: [], workspaces: [] },
  lineage: ["conformance"] as const,
  answersOwn: false,
};
const mounts = serveRpcs(
  {
    rpcs: conformanceRpcs(service, registry),
    gate: () => principal,
    failures,
    limits: createEdgeLimits(limits),
    budget: createByteBudget(limits.bufferedBytes),
    shutdownSignal: new AbortController().signal,
    log: logger,
  },
  { bytesOf: () => undefined },
);
const listener = await createListener({
  config,
  caps: createConnectionCaps({ limits, trustedProxies: [], onRefused: ({ limit }) => log(`refused: ${limit}`) }),
  handler: createHttpGuard(config, refuse, dispatch(mounts, refuse)),
  onDrain: () => undefined,
  onClose: () => undefined,
  log: logger,
  headersMs: 15_000,
  idleMs: 75_000,
  http2IdleMs: 120_000,
  bodyMs: limits.bodyMs,
});
process.once("SIGTERM", () => process.exit());
const port = Number(new URL(listener.url).port);
writeMessage("ServerCompatResponse", { host: "127.0.0.1", port, ...(config.tls && { pemCert: cert }) });

async function readMessage(name: string): Promise<Message> {
  let bytes: Buffer = Buffer.alloc(0);
  while (bytes.length < 4 || bytes.length < 4 + bytes.readUInt32BE(0)) {
    const [chunk] = await once(process.stdin, "data");
    bytes = Buffer.concat([bytes, chunk]);
  }
  return fromBinary(messageType(name), bytes.subarray(4, 4 + bytes.readUInt32BE(0)));
}

function writeMessage(name: string, fields: Record<string, unknown>): void {
  const message = toBinary(messageType(name), create(messageType(name), fields));
  const length = Buffer.alloc(4);
  length.writeUInt32BE(message.length);
  process.stdout.write(Buffer.concat([length, message]));
}

function messageType(name: string) {
  const desc = registry.getMessage(`connectrpc.conformance.v1.${name}`);
  if (desc === undefined) throw new Error(`the descriptors lack ${name}`);
  return desc;
}

interface ServerCompatRequest extends Message {
  useTls: boolean;
  clientTlsCert: Uint8Array;
  messageReceiveLimit: number;
  serverCreds?: { cert: Uint8Array; key: Uint8Array };
}
