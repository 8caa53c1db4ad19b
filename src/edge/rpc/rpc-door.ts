import type { DescFile } from "@bufbuild/protobuf";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { file_google_rpc_error_details } from "../../../gen/google/rpc/error_details_pb.ts";
import { file_grpc_health_v1_health, Health } from "../../../gen/grpc/health/v1/health_pb.ts";
import { ServerReflection } from "../../../gen/grpc/reflection/v1/reflection_pb.ts";
import type { EncodedMessages } from "../../call/ports.ts";
import { isPublicRpc } from "../api/access.ts";
import { createMessageCheck } from "../api/check-message.ts";
import { nameOfRpc } from "../api/rpc.ts";
import { rpcsOfServices, type Services } from "../api/services.ts";
import type { Handler } from "../http/handler.ts";
import type { Mount } from "../http/mounts.ts";
import type { Readiness } from "../http/readiness.ts";
import { createConnectHandler } from "./connect-router.ts";
import { createDirectHandler, type RpcOptions } from "./direct.ts";
import { routeHealth } from "./health.ts";
import { createKnownBytes } from "./known-bytes.ts";
import { routeReflection } from "./reflection.ts";

/** Options of the door. */
export interface RpcDoorOptions extends Pick<RpcOptions, "gate" | "failures" | "limits" | "shutdownSignal" | "log"> {
  services: Services;
  readiness: Readiness;
  encoded: EncodedMessages;
}

/** Opens the door for Connect, gRPC and gRPC-Web, with health checks and reflection. */
export function rpcDoor({ services, readiness, encoded, ...options }: RpcDoorOptions): Mount[] {
  const rpcs = rpcsOfServices(services);
  const files = [...new Set(rpcs.map(({ method }) => method.parent.file))];
  const typeNames = [...new Set(rpcs.map(({ method }) => method.parent.typeName))];
  const open = [Health.typeName, ServerReflection.typeName];
  const serving: RpcOptions = {
    ...options,
    rpcs,
    checkMessage: createMessageCheck(),
    known: createKnownBytes(encoded),
    compression: { acceptCompression: [compressionGzip, compressionBrotli], compressMinBytes: 65_536 },
  };
  const direct = createDirectHandler(serving);
  const others = createConnectHandler(serving, {
    typeNames: open,
    route(router) {
      routeHealth(router, readiness, typeNames);
      routeReflection(router, [...files, ...filesForReflection]);
    },
  });
  const small = createConnectHandler(
    { ...serving, limits: { ...options.limits, requestBytes: options.limits.publicRequestBytes } },
    { typeNames: [], route: () => {} },
  );
  const publicPaths = rpcs.filter(({ method }) => isPublicRpc(method)).map(({ method }) => `/${nameOfRpc(method)}`);
  const mounts = publicPaths.map((path): Mount => ({ path, handle: serveBy(small) }));
  return [
    ...mounts,
    ...[...typeNames, ...open].map((typeName) => ({ path: `/${typeName}/`, handle: serveBy(others) })),
  ];

  function serveBy(fallback: Handler): Handler {
    return (request, response) => {
      if (!direct(request, response)) fallback(request, response);
    };
  }
}

/** Files that reflection describes as well as those of the services. */
const filesForReflection: readonly DescFile[] = [file_grpc_health_v1_health, file_google_rpc_error_details];
