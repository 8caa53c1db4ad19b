import { setTimeout as delay } from "node:timers/promises";
import {
  create,
  createRegistry,
  type DescFile,
  type DescMessage,
  isMessage,
  type Message,
  toBinary,
} from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { file_google_rpc_error_details } from "../../../gen/google/rpc/error_details_pb.ts";
import {
  file_grpc_health_v1_health,
  Health,
  type HealthCheckResponse,
  HealthCheckResponseSchema,
  HealthCheckResponse_ServingStatus as Status,
} from "../../../gen/grpc/health/v1/health_pb.ts";
import { ServerReflection, type ServerReflectionRequest } from "../../../gen/grpc/reflection/v1/reflection_pb.ts";
import { ServerReflection as ServerReflectionAlpha } from "../../../gen/grpc/reflection/v1alpha/reflection_pb.ts";
import { SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import {
  type ListPermissionsResponse,
  ListPermissionsResponseSchema,
} from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { type PermissionRequest, ToolPartSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { EncodedMessages } from "../../call/ports.ts";
import { untilAborted } from "../../core/within.ts";
import { isPublicRpc } from "../api/access.ts";
import { notServed } from "../api/request-failure.ts";
import { createMessageCheck, type EdgeContext, rpcsOf, type ServiceFunctions } from "../api/rpc.ts";
import { rpcsOfServices, type Services } from "../api/services.ts";
import type { Mount } from "../http/handler.ts";
import type { Readiness } from "../http/probes.ts";
import type { ByteBudget } from "../http/socket-limits.ts";
import { createConnectHandler } from "./connect-router.ts";
import { createDirectHandler } from "./direct.ts";
import type { KnownBytes, RpcOptions } from "./wire.ts";

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

/** Returns the functions of grpc.health.v1 for the whole server ("") and each of these services, which share one state. */
function healthService(readiness: Readiness, services: readonly string[]): ServiceFunctions<typeof Health> {
  const names = ["", ...services];
  const state = async () => ((await readiness.problem()) === undefined ? serving : notServing);

  return {
    async check({ service }) {
      if (names.includes(service)) return await state();
      throw notServed("not_found", `service ${service} is not served here; List names those that are`);
    },
    async *watch({ service }, { signal }) {
      let sent: HealthCheckResponse | undefined;
      const news = AbortSignal.any([signal, readiness.draining]);
      for (;;) {
        const wasDraining = readiness.draining.aborted;
        const current = names.includes(service) ? await state() : serviceUnknown;
        if (current !== sent) yield current;
        sent = current;
        // An abort ends the wait below, so that a drain is reported at once, before the stream ends.
        signal.throwIfAborted();
        const waits = { signal: wasDraining ? signal : news, ref: false };
        await delay(pollMs, undefined, waits).catch(() => undefined);
      }
    },
    async list() {
      const current = await state();
      return { statuses: Object.fromEntries(names.map((name) => [name, current])) };
    },
  };
}

// One message for each state, so that each is encoded once.
const serving = create(HealthCheckResponseSchema, { status: Status.SERVING });
const notServing = create(HealthCheckResponseSchema, { status: Status.NOT_SERVING });
const serviceUnknown = create(HealthCheckResponseSchema, { status: Status.SERVICE_UNKNOWN });

/** Interval at which a watch checks the store. A drain is reported at once. */
const pollMs = 5_000;

/**
 * Creates the lookup of binary forms: those that the store has; events, each of which is encoded once for all its watchers; open
 * requests, each of which is encoded once for all who list it; and the states of health, each of which is one message.
 */
function createKnownBytes({ bytesOf }: EncodedMessages): KnownBytes {
  const encoded = new WeakMap<Message, Uint8Array>();
  const once = (message: Message, encode: () => Uint8Array): Uint8Array => {
    const bytes = encoded.get(message) ?? encode();
    encoded.set(message, bytes);
    return bytes;
  };
  const encodeOnce = (schema: DescMessage, message: Message) => once(message, () => toBinary(schema, message));
  const encodeList = (list: ListPermissionsResponse) => toBinary(ListPermissionsResponseSchema, list);
  /** A request occurs in no other message whose form is looked up, so its entry is the list of it alone. */
  const encodeSingle = (one: PermissionRequest) =>
    once(one, () => encodeList(create(ListPermissionsResponseSchema, { permissions: [one] })));
  const listed = new WeakSet<Message>();
  /** Encodes a list that is repeated as lists of one request each and one of the rest: one behind the other they are the whole list. */
  const encodeEach = (list: ListPermissionsResponse): Uint8Array => {
    const [first] = list.permissions;
    if (first === undefined || !listed.has(first)) {
      if (first !== undefined) listed.add(first);
      return encodeList(list);
    }
    return Buffer.concat([...list.permissions.map(encodeSingle), encodeList({ ...list, permissions: [] })]);
  };
  return (message) => {
    if (isMessage(message, ListPermissionsResponseSchema)) return encodeEach(message);
    if (isMessage(message, ToolPartSchema)) return bytesOf(message);
    if (isMessage(message, HealthCheckResponseSchema)) return encodeOnce(HealthCheckResponseSchema, message);
    if (!isMessage(message, SessionEventSchema)) return undefined;
    return bytesOf(message) ?? encodeOnce(SessionEventSchema, message);
  };
}

/** Options of reflection. */
interface ReflectionOptions {
  /** Budget from which each answer takes its bytes until it is sent. */
  budget: ByteBudget;
  /** Encodes a file's descriptor; it is called once for each file. */
  encode?: (file: DescFile) => Uint8Array;
}

/**
 * Returns the function of grpc.reflection, v1 and v1alpha, for the services of these files, so that clients such as grpcurl need
 * no proto files.
 */
export function reflectionService(
  files: readonly DescFile[],
  options: ReflectionOptions,
): { serverReflectionInfo: Reflect } {
  let index: ReturnType<typeof createReflectionIndex> | undefined;
  return {
    async *serverReflectionInfo(requests, { signal }) {
      // Few services are ever asked: the files are encoded for the first request.
      index ??= createReflectionIndex(files, options.encode ?? encodeFile);
      const answer = index;
      const sent = new Set<DescFile>();
      // A client that sends no more requests must not delay a shutdown.
      for await (const request of itemsUntilAborted(requests, signal)) {
        const messageResponse = answer(request, sent);
        const bytes = sizeOf(messageResponse);
        options.budget.reserve(bytes);
        try {
          yield { validHost: request.host, originalRequest: request, messageResponse };
        } finally {
          options.budget.release(bytes);
        }
      }
    },
  };
}

type Reflect = <Request extends ReflectionRequest>(
  requests: AsyncIterable<Request>,
  context: Pick<EdgeContext, "signal">,
) => AsyncGenerator<{ validHost: string; originalRequest: Request; messageResponse: ReflectionAnswer }>;

/** Request of either version: they differ in the name of the package only. */
interface ReflectionRequest {
  host: string;
  messageRequest: { case: string | undefined; value?: unknown };
}

type ReflectionAnswer =
  | { case: "listServicesResponse"; value: { service: { name: string }[] } }
  | { case: "fileDescriptorResponse"; value: { fileDescriptorProto: Uint8Array[] } }
  | { case: "allExtensionNumbersResponse"; value: { baseTypeName: string; extensionNumber: number[] } }
  | { case: "errorResponse"; value: { errorCode: number; errorMessage: string } };

/** Creates the lookup of answers. `sent` collects the files that a stream has received: it gets each dependency once. */
function createReflectionIndex(
  files: readonly DescFile[],
  encode: (file: DescFile) => Uint8Array,
): (request: ReflectionRequest, sent: Set<DescFile>) => ReflectionAnswer {
  const all = closure(files);
  const byName = new Map(all.map((file) => [file.proto.name, file]));
  const registry = createRegistry(...all);
  const services = files.flatMap((file) => file.services.map(({ typeName }) => ({ name: typeName })));
  const encoded = new Map(all.map((file) => [file, encode(file)]));

  const fileOf = (symbol: string): DescFile | undefined =>
    // A method or field is found by its service or message.
    (registry.get(symbol) ?? registry.get(symbol.slice(0, Math.max(0, symbol.lastIndexOf(".")))))?.file;

  const extensionsOf = (type: string) =>
    [...registry].filter((desc) => desc.kind === "extension").filter(({ extendee }) => extendee.typeName === type);

  /** Returns a file with those of its dependencies that the stream lacks, so that one query is enough. */
  const withFile = (file: DescFile | undefined, name: string, sent: Set<DescFile>): ReflectionAnswer => {
    if (file === undefined) return failure(Code.NotFound, `${name} is not served here`);
    const missing = closure([file]).filter((one) => one === file || !sent.has(one));
    for (const one of missing) sent.add(one);
    const fileDescriptorProto = missing.flatMap((one) => encoded.get(one) ?? []);
    return { case: "fileDescriptorResponse", value: { fileDescriptorProto } };
  };

  return (request, sent) => {
    const query = request.messageRequest as ServerReflectionRequest["messageRequest"];
    switch (query.case) {
      case "listServices":
        return { case: "listServicesResponse", value: { service: services } };
      case "fileByFilename":
        return withFile(byName.get(query.value), `file ${query.value}`, sent);
      case "fileContainingSymbol":
        return withFile(fileOf(query.value), `symbol ${query.value}`, sent);
      case "fileContainingExtension": {
        const { containingType, extensionNumber } = query.value;
        const extension = extensionsOf(containingType).find(({ number }) => number === extensionNumber);
        return withFile(extension?.file, `extension ${extensionNumber} of ${containingType}`, sent);
      }
      case "allExtensionNumbersOfType": {
        const extensionNumber = extensionsOf(query.value).map(({ number }) => number);
        return { case: "allExtensionNumbersResponse", value: { baseTypeName: query.value, extensionNumber } };
      }
      default:
        return failure(Code.InvalidArgument, "the request is empty; set one of message_request");
    }
  };
}

/** Passes items on until the signal is aborted, then throws its reason. */
async function* itemsUntilAborted<T>(items: AsyncIterable<T>, signal: AbortSignal): AsyncGenerator<T> {
  const iterator = items[Symbol.asyncIterator]();
  for (;;) {
    signal.throwIfAborted();
    const next = await untilAborted(iterator.next(), signal);
    if (next.done === true) return;
    yield next.value;
  }
}

function encodeFile({ proto }: DescFile): Uint8Array {
  return toBinary(FileDescriptorProtoSchema, proto);
}

/** Returns the size of an answer's files; all else in an answer is small. */
function sizeOf(answer: ReflectionAnswer): number {
  if (answer.case !== "fileDescriptorResponse") return 0;
  return answer.value.fileDescriptorProto.reduce((size, bytes) => size + bytes.length, 0);
}

function failure(errorCode: Code, errorMessage: string): ReflectionAnswer {
  return { case: "errorResponse", value: { errorCode, errorMessage } };
}

/** Returns the files with all files that they import. */
function closure(files: readonly DescFile[]): DescFile[] {
  const found = new Set<DescFile>();
  const visit = (file: DescFile): void => {
    if (found.has(file)) return;
    found.add(file);
    file.dependencies.forEach(visit);
  };
  files.forEach(visit);
  return [...found];
}
