import { createRegistry, type DescFile } from "@bufbuild/protobuf";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { file_google_rpc_error_details } from "../../../gen/google/rpc/error_details_pb.ts";
import { file_grpc_health_v1_health, Health } from "../../../gen/grpc/health/v1/health_pb.ts";
import { ServerReflection } from "../../../gen/grpc/reflection/v1/reflection_pb.ts";
import { ServerReflection as ServerReflectionAlpha } from "../../../gen/grpc/reflection/v1alpha/reflection_pb.ts";
import type { EncodedMessages } from "../../call/ports.ts";
import { isPublicRpc } from "../api/access.ts";
import { createMessageCheck } from "../api/check-message.ts";
import { rpcsOf } from "../api/rpc.ts";
import { rpcsOfServices, type Services } from "../api/services.ts";
import type { Mount } from "../http/mounts.ts";
import type { Readiness } from "../http/readiness.ts";
import { createConnectHandler } from "./connect-router.ts";
import { createDirectHandler } from "./direct.ts";
import { healthService } from "./health.ts";
import { createKnownBytes } from "./known-bytes.ts";
import { reflectionService } from "./reflection.ts";
import type { RpcOptions } from "./rpc-options.ts";

/** Options of every door that serves rpcs. */
type ServeOptions = Omit<RpcOptions, "checkMessage" | "known" | "compression" | "jsonOptions">;

/** Options of the door. */
export interface RpcDoorOptions extends Omit<ServeOptions, "rpcs"> {
  services: Services;
  readiness: Readiness;
  encoded: EncodedMessages;
}

/** Opens the door for Connect, gRPC and gRPC-Web, with health checks and reflection. */
export function rpcDoor({ services, readiness, encoded, ...options }: RpcDoorOptions): Mount[] {
  const rpcs = rpcsOfServices(services).map((rpc) => ({ ...rpc, isPublic: isPublicRpc(rpc.method) }));
  const files = [...new Set(rpcs.map(({ method }) => method.parent.file))];
  const typeNames = [...new Set(rpcs.map(({ method }) => method.parent.typeName))];
  const reflection = reflectionService([...files, ...filesForReflection], options);
  const isPublic = true;
  return serveRpcs(
    {
      ...options,
      rpcs: [
        ...rpcs,
        ...rpcsOf(Health, healthService(readiness, typeNames), { isPublic }),
        ...rpcsOf(ServerReflection, reflection, { isPublic }),
        ...rpcsOf(ServerReflectionAlpha, reflection, { isPublic }),
      ],
    },
    encoded,
  );
}

/** Serves rpcs by Connect, gRPC and gRPC-Web. */
export function serveRpcs(options: ServeOptions, encoded: EncodedMessages): Mount[] {
  const services = [...new Set(options.rpcs.map(({ method }) => method.parent))];
  const serving: RpcOptions = {
    ...options,
    checkMessage: createMessageCheck(),
    known: createKnownBytes(encoded),
    compression: { acceptCompression: [compressionGzip, compressionBrotli], compressMinBytes: 65_536 },
    // A misspelt field or enum value is an error, not a default.
    jsonOptions: { ignoreUnknownFields: false, registry: createRegistry(...services.map(({ file }) => file)) },
  };
  const direct = createDirectHandler(serving);
  const others = createConnectHandler(serving);
  return services.map(({ typeName }) => ({
    path: `/${typeName}/`,
    handle(request, response) {
      if (!direct(request, response)) others(request, response);
    },
  }));
}

/** Files that reflection describes as well as those of the services. */
const filesForReflection: readonly DescFile[] = [file_grpc_health_v1_health, file_google_rpc_error_details];
