import { create, type DescMessage, type Message, type MessageInitShape, toJsonString } from "@bufbuild/protobuf";
import { encodeMessage } from "../../core/encode-message.ts";
import type { EdgeContext } from "../api/edge-context.ts";
import type { BidiRpc, SingleRequestRpc } from "../api/rpc.ts";
import type { Request } from "../http/handler.ts";
import { BodyChunks } from "./body-chunks.ts";
import { parseMessage } from "./parse-message.ts";
import { readMessages } from "./request-messages.ts";
import type { RpcOptions } from "./rpc-options.ts";
import { headerValue, type SingleWire, type StreamWire, type WireResponse } from "./wire.ts";

/** An rpc and the wire of a request to it. */
export type Selected =
  | { takes: "one message"; rpc: SingleRequestRpc; wire: SingleWire }
  | { takes: "a stream"; rpc: BidiRpc; wire: StreamWire };

/** Reads the request of an rpc, runs it, and sends its response message or messages. */
export async function runRpc(
  options: RpcOptions,
  { request, ...selected }: Selected & { request: Request },
  context: EdgeContext,
  sent: WireResponse,
): Promise<void> {
  const messages = createMessageForm(options, selected);
  if (selected.takes === "a stream") {
    const received = receive(options, { request, ...selected }, context, messages.decode);
    try {
      await sendAll(selected.rpc.run(received.messages, context), sent, messages.encode, context.signal);
    } finally {
      // The function may end while it reads, or without having read to the end.
      received.chunks.close();
      received.messages.return().catch(() => undefined);
    }
    return;
  }
  const { rpc, wire } = selected;
  const { limits, signal } = context;
  const maxBytes = rpc.isPublic ? limits.publicRequestBytes : limits.requestBytes;
  const body = await wire.read(request, { maxBytes, maxMs: limits.bodyMs, budget: options.budget });
  const message = messages.decode(body);
  if (rpc.kind === "unary") await sent.end(messages.encode(await rpc.run(message, context)));
  else await sendAll(rpc.run(message, context), sent, messages.encode, signal);
}

/** Creates the functions between the messages of an rpc and their bytes. */
function createMessageForm(
  { checkMessage, jsonOptions, known }: RpcOptions,
  { rpc: { method }, wire: { isBinary } }: Selected,
) {
  return {
    decode(bytes: Uint8Array): Message {
      const message = parseMessage(method.input, bytes, { isBinary, jsonOptions });
      checkMessage(method.input, message);
      return message;
    },
    encode(given: MessageInitShape<DescMessage>): Uint8Array {
      const message = create(method.output, given);
      if (!isBinary) return Buffer.from(toJsonString(method.output, message, jsonOptions));
      return known(message) ?? encodeMessage(method.output, message, known);
    },
  };
}

/** Reads the request messages of a stream, as its function asks for them. */
function receive(
  { compression, budget }: RpcOptions,
  { rpc, wire, request }: { rpc: BidiRpc; wire: StreamWire; request: Request },
  { limits, signal }: EdgeContext,
  decode: (bytes: Uint8Array) => Message,
) {
  const chunks = new BodyChunks(request, signal);
  const encoding = headerValue(request.headers[wire.encodingHeader]);
  const messages = readMessages(chunks, {
    limits: { maxBytes: rpc.messageBytes ?? limits.requestBytes, maxMs: limits.bodyMs, budget },
    compression: compression.acceptCompression.find(({ name }) => name === encoding),
    decode,
  });
  return { chunks, messages };
}

/** Sends the messages of a stream, each when the client has read those before it. */
async function sendAll(
  messages: AsyncIterable<MessageInitShape<DescMessage>>,
  sent: WireResponse,
  encode: (message: MessageInitShape<DescMessage>) => Uint8Array,
  signal: AbortSignal,
): Promise<void> {
  for await (const message of messages) {
    const sending = sent.send(encode(message));
    if (sending !== undefined) await sending;
    signal.throwIfAborted();
  }
  await sent.end();
}
