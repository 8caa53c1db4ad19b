import { createRegistry, type DescFile, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { Code, type ConnectRouter } from "@connectrpc/connect";
import {
  ServerReflection,
  type ServerReflectionRequest,
  type ServerReflectionResponseSchema,
} from "../../../gen/grpc/reflection/v1/reflection_pb.ts";

type Answer = NonNullable<MessageInitShape<typeof ServerReflectionResponseSchema>["messageResponse"]>;

/** Serves grpc.reflection.v1 over the services of these files, so that grpcurl and buf curl need no proto. */
export function routeReflection(router: ConnectRouter, files: readonly DescFile[]): void {
  const all = closure(files);
  const byName = new Map(all.map((file) => [file.proto.name, file]));
  const registry = createRegistry(...all);
  const services = files.flatMap((file) => file.services.map(({ typeName }) => ({ name: typeName })));

  const fileOf = (symbol: string): DescFile | undefined =>
    // A method or field is found by what it belongs to.
    (registry.get(symbol) ?? registry.get(symbol.slice(0, Math.max(0, symbol.lastIndexOf(".")))))?.file;

  const extensionsOf = (type: string) =>
    [...registry].filter((desc) => desc.kind === "extension").filter(({ extendee }) => extendee.typeName === type);

  const answer = ({ messageRequest: ask }: ServerReflectionRequest): Answer => {
    switch (ask.case) {
      case "listServices":
        return { case: "listServicesResponse", value: { service: services } };
      case "fileByFilename":
        return withFile(byName.get(ask.value), `file ${ask.value}`);
      case "fileContainingSymbol":
        return withFile(fileOf(ask.value), `symbol ${ask.value}`);
      case "fileContainingExtension": {
        const { containingType, extensionNumber } = ask.value;
        const extension = extensionsOf(containingType).find(({ number }) => number === extensionNumber);
        return withFile(extension?.file, `extension ${extensionNumber} of ${containingType}`);
      }
      case "allExtensionNumbersOfType": {
        const extensionNumber = extensionsOf(ask.value).map(({ number }) => number);
        return { case: "allExtensionNumbersResponse", value: { baseTypeName: ask.value, extensionNumber } };
      }
      default:
        return failure(Code.InvalidArgument, "the request asks for nothing; set one of message_request");
    }
  };

  router.service(ServerReflection, {
    async *serverReflectionInfo(requests, { signal }) {
      // A client that asks nothing more must not hold up a shutdown.
      for await (const request of untilAborted(requests, signal)) {
        yield { validHost: request.host, originalRequest: request, messageResponse: answer(request) };
      }
    },
  });
}

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

/** The file and all that it imports: a client need not ask again. */
function withFile(file: DescFile | undefined, what: string): Answer {
  if (file === undefined) return failure(Code.NotFound, `${what} is not served here`);
  const fileDescriptorProto = closure([file]).map(({ proto }) => toBinary(FileDescriptorProtoSchema, proto));
  return { case: "fileDescriptorResponse", value: { fileDescriptorProto } };
}

function failure(errorCode: Code, errorMessage: string): Answer {
  return { case: "errorResponse", value: { errorCode, errorMessage } };
}

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
