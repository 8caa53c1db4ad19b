import { once } from "node:events";
import { createServer } from "node:http";
import { buffer } from "node:stream/consumers";
import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";
import { onTestFinished } from "vitest";

/** An exported span. */
export interface ReceivedSpan {
  name: string;
  traceId: string;
  spanId: string;
  parentSpanId: string;
  /** Ids of the spans that it links to. */
  links: string[];
  attributes: Record<string, string>;
  isError: boolean;
}

/** Starts an OTLP collector that stops with the test. */
export async function startCollector(): Promise<{
  url: string;
  spans: ReceivedSpan[];
  resources: Record<string, string>[];
}> {
  const spans: ReceivedSpan[] = [];
  const resources: Record<string, string>[] = [];
  const server = createServer(async (request, response) => {
    const body = await buffer(request);
    for (const resourceSpans of fields(body, 1)) {
      resources.push(...fields(resourceSpans, 1).map((resource) => attributesOf(fields(resource, 1))));
      spans.push(...fields(resourceSpans, 2).flatMap((scope) => fields(scope, 2).map(readSpan)));
    }
    response.setHeader("content-type", "application/x-protobuf").end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const address = server.address();
  return { url: `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`, spans, resources };
}

// Numbers of opentelemetry.proto.trace.v1.
function readSpan(span: Uint8Array): ReceivedSpan {
  const [status = new Uint8Array()] = fields(span, 15);
  return {
    traceId: hex(fields(span, 1)),
    spanId: hex(fields(span, 2)),
    parentSpanId: hex(fields(span, 4)),
    name: text(fields(span, 5)),
    attributes: attributesOf(fields(span, 9)),
    links: fields(span, 13).map((link) => hex(fields(link, 2))),
    isError: varint(status, 3) === 2,
  };
}

/** Returns the attributes that are texts. */
function attributesOf(pairs: Uint8Array[]): Record<string, string> {
  return Object.fromEntries(
    pairs.map((pair) => [text(fields(pair, 1)), text(fields(pair, 2).flatMap((value) => fields(value, 1)))]),
  );
}

/** Returns the messages, texts and bytes of a field. */
function fields(message: Uint8Array, wanted: number): Uint8Array[] {
  const reader = new BinaryReader(message);
  const found: Uint8Array[] = [];
  while (reader.pos < reader.len) {
    const [field, type] = reader.tag();
    if (field === wanted && type === WireType.LengthDelimited) found.push(reader.bytes());
    else reader.skip(type, field);
  }
  return found;
}

function varint(message: Uint8Array, wanted: number): number {
  const reader = new BinaryReader(message);
  while (reader.pos < reader.len) {
    const [field, type] = reader.tag();
    if (field === wanted && type === WireType.Varint) return reader.int32();
    reader.skip(type, field);
  }
  return 0;
}

const hex = ([bytes]: Uint8Array[]) => Buffer.from(bytes ?? []).toString("hex");
const text = ([bytes]: Uint8Array[]) => Buffer.from(bytes ?? []).toString();
