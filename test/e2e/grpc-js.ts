import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError, type Transport } from "@connectrpc/connect";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { Client, credentials, Metadata, type ServiceError } from "@grpc/grpc-js";
import { loadSync, type MethodDefinition } from "@grpc/proto-loader";

const contract = loadSync(
  ["tool", "permission", "session"].map((name) => `opencode/tool/v1/${name}_service.proto`),
  { includeDirs: ["proto"] },
);

/**
 * Speaks native gRPC with @grpc/grpc-js, which reads the .proto files itself. Only at its edge messages become those of
 * gen/, so that the same scenario runs with every client.
 */
export function createGrpcJsTransport(baseUrl: string, token: string): Transport {
  const client = new Client(new URL(baseUrl).host, credentials.createInsecure());
  const metadata = new Metadata();
  metadata.set("authorization", `Bearer ${token}`);
  const nothing = { header: new Headers(), trailer: new Headers() };

  return {
    async unary(method, signal, _timeoutMs, _header, input) {
      const rpc = rpcOf(method.parent.typeName, method.name);
      const request = rpc.requestDeserialize(Buffer.from(toBinary(method.input, create(method.input, input))));
      const answer = await new Promise<object>((resolve, reject) => {
        const call = client.makeUnaryRequest(
          rpc.path,
          rpc.requestSerialize,
          rpc.responseDeserialize,
          request,
          metadata,
          (error, value) => (value === undefined ? reject(toConnectError(error)) : resolve(value)),
        );
        signal?.addEventListener("abort", () => call.cancel(), { once: true });
      });
      const message = fromBinary(method.output, new Uint8Array(rpc.responseSerialize(answer)));
      return { stream: false, service: method.parent, method, ...nothing, message };
    },
    async stream(method, signal, _timeoutMs, _header, inputs) {
      const rpc = rpcOf(method.parent.typeName, method.name);
      const [input] = await Array.fromAsync(inputs);
      const request = rpc.requestDeserialize(Buffer.from(toBinary(method.input, create(method.input, input))));
      const call = client.makeServerStreamRequest(
        rpc.path,
        rpc.requestSerialize,
        rpc.responseDeserialize,
        request,
        metadata,
      );
      signal?.addEventListener("abort", () => call.cancel(), { once: true });
      async function* messages() {
        try {
          for await (const answer of call)
            yield fromBinary(method.output, new Uint8Array(rpc.responseSerialize(answer)));
        } catch (error) {
          throw toConnectError(error);
        }
      }
      return { stream: true, service: method.parent, method, ...nothing, message: messages() };
    },
  };
}

function rpcOf(service: string, method: string): MethodDefinition<object, object> {
  const definition = contract[service];
  if (definition === undefined || "format" in definition) throw new Error(`the contract has no service ${service}`);
  const rpc = new Map(Object.entries(definition)).get(method);
  if (rpc === undefined) throw new Error(`${service} has no rpc ${method}`);
  return rpc;
}

/** The same error as its client sees it, read with the details that came in its trailers. */
function toConnectError(error: unknown): ConnectError {
  if (!isServiceError(error)) return ConnectError.from(error);
  const details = error.metadata.get("grpc-status-details-bin").map((detail) => Buffer.from(detail).toString("base64"));
  const trailer = new Headers({ "grpc-status": String(error.code), "grpc-message": encodeURIComponent(error.details) });
  if (details[0] !== undefined) trailer.set("grpc-status-details-bin", details[0]);
  return findTrailerError(trailer) ?? new ConnectError(error.message, Code.Unknown);
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && "code" in error && "details" in error && "metadata" in error;
}
