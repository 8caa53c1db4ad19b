import { createRegistry, type DescFile, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { Code, type ConnectRouter } from "@connectrpc/connect";
import {
  ServerReflection,
  type ServerReflectionRequest,
  type ServerReflectionResponseSchema,
} from "../../../gen/grpc/reflection/v1/reflection_pb.ts";

type ReflectionAnswer = NonNullable<MessageInitShape<typeof ServerReflectionResponseSchema>["messageResponse"]>;

/** Serves grpc.reflection.v1 for the services of these files, so that grpcurl and buf curl need no proto files. */
export function routeReflection(router: ConnectRouter, files: readonly DescFile[]): void {
  const all = closure(files);
  const byName = new Map(all.map((file) => [file.proto.name, file]));
  const registry = createRegistry(...all);
  const services = files.flatMap((file) => file.services.map(({ typeName }) => ({ name: typeName })));

  const fileOf = (symbol: string): DescFile | undefined =>
    // A method or field is found by its service or message.
    (registry.get(symbol) ?? registry.get(symbol.slice(0, Math.max(0, symbol.lastIndexOf(".")))))?.file;

  const extensionsOf = (type: string) =>
    [...registry].filter((desc) => desc.kind === "extension").filter(({ extendee }) => extendee.typeName === type);

  const answer = ({ messageRequest: query }: ServerReflectionRequest): ReflectionAnswer => {
    switch (query.case) {
      case "listServices":
        return { case: "listServicesResponse", value: { service: services } };
      case "fileByFilename":
        return withFile(byName.get(query.value), `file ${query.value}`);
      case "fileContainingSymbol":
        return withFile(fileOf(query.value), `symbol ${query.value}`);
      case "fileContainingExtension": {
        const { containingType, extensionNumber } = query.value;
        const extension = extensionsOf(containingType).find(({ number }) => number === extensionNumber);
        return withFile(extension?.file, `extension ${extensionNumber} of ${containingType}`);
      }
      case "allExtensionNumbersOfType": {
        const extensionNumber = extensionsOf(query.value).map(({ number }) => number);
        return { case: "allExtensionNumbersResponse", value: { baseTypeName: query.value, extensionNumber } };
      }
      default:
        return failure(Code.InvalidArgument, "the request is empty; set one of message_request");
    }
  };

  router.service(ServerReflection, {
    async *serverReflectionInfo(requests, { signal }) {
      // A client that sends no more requests must not delay a shutdown.
      for await (const request of untilAborted(requests, signal)) {
        yield { validHost: request.host, originalRequest: request, messageResponse: answer(request) };
      }
    },
  });
}

/** Passes items on until the signal is aborted, then throws its reason. */
async function* untilAborted<T>(items: AsyncIterable<T>, signal: AbortSignal): AsyncGenerator<T> {
  const abort = Promise.withResolvers<never>();
  abort.promise.catch(() => undefined);
  const onAbort = () => abort.reject(signal.reason);
  signal.addEventListener("abort", onAbort);
  const iterator = items[Symbol.asyncIterator]();
  try {
    for (;;) {
      signal.throwIfAborted();
      const next = await Promise.race([iterator.next(), abort.promise]);
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}

/** Returns a file with all files that it imports, so that one query is enough. */
function withFile(file: DescFile | undefined, name: string): ReflectionAnswer {
  if (file === undefined) return failure(Code.NotFound, `${name} is not served here`);
  const fileDescriptorProto = closure([file]).map(({ proto }) => toBinary(FileDescriptorProtoSchema, proto));
  return { case: "fileDescriptorResponse", value: { fileDescriptorProto } };
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
