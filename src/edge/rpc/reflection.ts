import { createRegistry, type DescFile, toBinary } from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import type { ServerReflectionRequest } from "../../../gen/grpc/reflection/v1/reflection_pb.ts";
import type { EdgeContext } from "../api/edge-context.ts";
import type { ByteBudget } from "../http/byte-budget.ts";

/** Options of reflection. */
export interface ReflectionOptions {
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
  const answer = createReflectionIndex(files, options.encode ?? encodeFile);
  return {
    async *serverReflectionInfo(requests, { signal }) {
      const sent = new Set<DescFile>();
      // A client that sends no more requests must not delay a shutdown.
      for await (const request of untilAborted(requests, signal)) {
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
