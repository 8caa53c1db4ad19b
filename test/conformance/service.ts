import { setTimeout as delay } from "node:timers/promises";
import { create, type DescService, type Message, type Registry } from "@bufbuild/protobuf";
import { type Any, anyPack, anyUnpack } from "@bufbuild/protobuf/wkt";
import { type FailureDetail, RequestFailure, type Status, statusNumbers } from "../../src/edge/api/request-failure.ts";
import { type EdgeContext, type Rpc, rpcsOf } from "../../src/edge/api/rpc.ts";

/** An error that a request of the suite defines; every other failure is the edge's. */
export class DefinedError extends RequestFailure {}

/** Lists the rpcs of connectrpc.conformance.v1.ConformanceService; it answers each request as the request defines. */
export function conformanceRpcs(service: DescService, registry: Registry): Rpc[] {
  const requestInfo = registry.getMessage("connectrpc.conformance.v1.ConformancePayload.RequestInfo");
  if (requestInfo === undefined) throw new Error("the descriptors lack ConformancePayload.RequestInfo");

  const pack = (message: Message): Any => {
    const desc = registry.getMessage(message.$typeName);
    if (desc === undefined) throw new Error(`the descriptors lack ${message.$typeName}`);
    return anyPack(desc, message);
  };
  const infoOf = ({ headers, deadline }: EdgeContext, requests: readonly Message[]) =>
    create(requestInfo, {
      requestHeaders: [...headers.entries()].map(([name, value]) => ({ name, value: value.split(", ") })),
      ...(deadline !== undefined && { timeoutMs: BigInt(Math.max(0, Math.trunc(deadline - Date.now()))) }),
      requests: requests.map(pack),
    });
  const failure = ({ code, message = "", details }: ConformanceError, info?: Message): RequestFailure => {
    const messages = [...details.map((detail) => anyUnpack(detail, registry)), info];
    return new DefinedError(statusOf(code), message, {
      details: messages.flatMap((value): FailureDetail[] => {
        const desc = value && registry.getMessage(value.$typeName);
        return value === undefined || desc === undefined ? [] : [{ desc, value }];
      }),
    });
  };

  const single = async (
    definition: UnaryDefinition | undefined,
    requests: readonly Message[],
    context: EdgeContext,
  ) => {
    const info = infoOf(context, requests);
    await prepare(definition, context);
    const { case: kind, value } = definition?.response ?? {};
    if (kind === "error" && value !== undefined) throw failure(value, info);
    return { payload: { requestInfo: info, ...(kind === "responseData" && { data: value }) } };
  };

  async function* stream(definition: StreamDefinition | undefined, requests: readonly Message[], context: EdgeContext) {
    const data = definition?.responseData ?? [];
    for (const [index, part] of data.entries()) {
      await delay(definition?.responseDelayMs);
      yield { payload: { data: part, ...(index === 0 && { requestInfo: infoOf(context, requests) }) } };
    }
    if (definition?.error !== undefined)
      throw failure(definition.error, data.length === 0 ? infoOf(context, requests) : undefined);
  }

  const unary = (request: UnaryRequest, context: EdgeContext) => single(request.responseDefinition, [request], context);

  const functions = {
    unary,
    idempotentUnary: unary,
    async clientStream(messages: AsyncIterable<UnaryRequest>, context: EdgeContext) {
      const requests = await Array.fromAsync(messages);
      return await single(requests[0]?.responseDefinition, requests, context);
    },
    async *serverStream(request: StreamRequest, context: EdgeContext) {
      addHeaders(request.responseDefinition, context);
      yield* stream(request.responseDefinition, [request], context);
    },
    async *bidiStream(messages: AsyncIterable<StreamRequest>, context: EdgeContext) {
      let definition: StreamDefinition | undefined;
      let isFullDuplex = false;
      let sentCount = 0;
      const waiting: Message[] = [];
      for await (const request of messages) {
        if (definition === undefined) {
          definition = request.responseDefinition;
          isFullDuplex = request.fullDuplex === true;
          addHeaders(definition, context);
        }
        waiting.push(request);
        if (!isFullDuplex) continue;
        const data = definition?.responseData[sentCount];
        if (data === undefined) break;
        await delay(definition?.responseDelayMs);
        const requests = waiting.splice(0);
        const info =
          sentCount === 0 ? infoOf(context, requests) : create(requestInfo, { requests: requests.map(pack) });
        yield { payload: { data, requestInfo: info } };
        sentCount += 1;
      }
      if (sentCount === 0) yield* stream(definition, waiting, context);
      else if (definition !== undefined) yield* rest(definition, sentCount);
    },
  };

  /** Sends what a full-duplex stream has not sent yet. */
  async function* rest({ responseData, responseDelayMs, error }: StreamDefinition, sentCount: number) {
    for (const data of responseData.slice(sentCount)) {
      await delay(responseDelayMs);
      yield { payload: { data } };
    }
    if (error !== undefined) throw failure(error);
  }

  // The descriptors are read at run time, so that TypeScript has no types for them.
  return rpcsOf(service, functions as never);
}

function statusOf(code: number): Status {
  const [name] = Object.entries(statusNumbers).find(([, number]) => number === code) ?? ["unknown"];
  return name as Status;
}

async function prepare(definition: UnaryDefinition | undefined, context: EdgeContext): Promise<void> {
  addHeaders(definition, context);
  await delay(definition?.responseDelayMs);
}

function addHeaders(
  definition: UnaryDefinition | StreamDefinition | undefined,
  { response: { headers, trailers } }: EdgeContext,
): void {
  for (const { name, value } of definition?.responseHeaders ?? []) for (const one of value) headers.append(name, one);
  for (const { name, value } of definition?.responseTrailers ?? []) for (const one of value) trailers.append(name, one);
}

interface Header {
  name: string;
  value: string[];
}

interface ConformanceError {
  code: number;
  message?: string;
  details: Any[];
}

interface Definition {
  responseHeaders: Header[];
  responseTrailers: Header[];
  responseDelayMs: number;
}

interface UnaryDefinition extends Definition {
  response:
    | { case: "responseData"; value: Uint8Array }
    | { case: "error"; value: ConformanceError }
    | { case: undefined; value?: undefined };
}

interface StreamDefinition extends Definition {
  responseData: Uint8Array[];
  error?: ConformanceError;
}

interface UnaryRequest extends Message {
  responseDefinition?: UnaryDefinition;
}

interface StreamRequest extends Message {
  responseDefinition?: StreamDefinition;
  fullDuplex?: boolean;
}
