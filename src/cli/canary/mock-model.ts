import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import { json } from "node:stream/consumers";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { isObject } from "../../core/json.ts";

/** A use of a tool that the model asks for. */
export interface ToolUse {
  /** Sent as the ID of the use; absent: a new one. */
  readonly id?: string;
  readonly tool: string;
  /** Group of tools to which it belongs, where the protocol has such groups. */
  readonly namespace?: string | undefined;
  readonly input: JsonObject;
}

/** A request of an agent to its model. */
export interface ModelRequest {
  readonly model: string;
  readonly messages: readonly { readonly role: string; readonly content: unknown }[];
  readonly tools?: readonly unknown[];
}

/** A model that follows a script instead of thinking. */
interface MockModel {
  readonly url: string;
  close(): void;
}

/** The protocols of models. */
export type ModelProtocol = "anthropic" | "gemini" | "openai" | "responses";

/** Chooses what the model answers: a use of a tool, or undefined for the text "done". */
type NextUse = (request: ModelRequest) => ToolUse | undefined;

/** Serves a model on this machine, for agents that are pointed to it. */
export async function startMockModel(protocol: ModelProtocol, next: NextUse): Promise<MockModel> {
  const server = createServer(async (request, response) => {
    if (request.method !== "POST" || request.url?.includes("count_tokens")) return void response.writeHead(404).end();
    const { read, reply } = protocols[protocol];
    const body = read((await json(request)) as JsonObject);
    response.writeHead(200, { "content-type": "text/event-stream" });
    reply(response, body, randomUUID(), next(body));
    response.end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  return {
    url: `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`,
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
}

type Reply = (response: ServerResponse, request: ModelRequest, id: string, use: ToolUse | undefined) => void;

/** Reads requests and writes replies of one protocol. */
interface Protocol {
  read(body: JsonObject): ModelRequest;
  reply: Reply;
}

const protocols: Readonly<Record<ModelProtocol, Protocol>> = {
  anthropic: { read: asIs, reply: replyAnthropic },
  gemini: { read: readGemini, reply: replyGemini },
  openai: { read: asIs, reply: replyOpenAi },
  responses: { read: readResponses, reply: replyResponses },
};

function asIs(body: JsonObject): ModelRequest {
  return body as unknown as ModelRequest;
}

/** Answers as the Messages API of Anthropic does. */
function replyAnthropic(...[response, { model }, id, use]: Parameters<Reply>): void {
  const send = (type: string, data: object) =>
    response.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`);
  const usage = { input_tokens: 1, output_tokens: 1 };
  const message = { id: `msg_${id}`, type: "message", role: "assistant", model, content: [], usage };
  send("message_start", { message: { ...message, stop_reason: null, stop_sequence: null } });
  const block = use
    ? { type: "tool_use", id: use.id ?? `toolu_${id}`, name: use.tool, input: {} }
    : { type: "text", text: "" };
  send("content_block_start", { index: 0, content_block: block });
  const delta = use
    ? { type: "input_json_delta", partial_json: JSON.stringify(use.input) }
    : { type: "text_delta", text: "done" };
  send("content_block_delta", { index: 0, delta });
  send("content_block_stop", { index: 0 });
  send("message_delta", { delta: { stop_reason: use ? "tool_use" : "end_turn", stop_sequence: null }, usage });
  send("message_stop", {});
}

/** Answers as OpenAI's chat completions do. */
function replyOpenAi(...[response, { model }, id, use]: Parameters<Reply>): void {
  const send = (delta: object, finish_reason: string | null = null) => {
    const choices = [{ index: 0, delta, finish_reason }];
    const chunk = { id, object: "chat.completion.chunk", created: 1, model, choices };
    response.write(`data: ${JSON.stringify(chunk)}\n\n`);
  };
  const call = (fn: ToolUse) => ({ name: fn.tool, arguments: JSON.stringify(fn.input) });
  if (use)
    send({
      role: "assistant",
      tool_calls: [{ index: 0, id: use.id ?? `call_${id}`, type: "function", function: call(use) }],
    });
  else send({ role: "assistant", content: "done" });
  send({}, use ? "tool_calls" : "stop");
  response.write("data: [DONE]\n\n");
}

/** Reads the items of OpenAI's Responses API as messages. */
function readResponses({ model, tools, input }: JsonObject): ModelRequest {
  const messages = objectsIn(input).map((item) => {
    const { type, role, content, output } = item;
    if (type === "function_call" || type === "custom_tool_call") return { role: "assistant", content: item };
    return typeof output === "string" || Array.isArray(output)
      ? { role: "tool", content: output }
      : { role: String(role), content };
  });
  return { model: String(model), messages, tools: objectsIn(tools) };
}

/** Answers as OpenAI's Responses API does. */
function replyResponses(...[response, , id, use]: Parameters<Reply>): void {
  const send = (type: string, data: object) =>
    response.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`);
  send("response.created", { response: { id } });
  const text = { type: "message", role: "assistant", id, content: [{ type: "output_text", text: "done" }] };
  const call = use && {
    ...{ type: "function_call", call_id: use.id ?? `call_${id}` },
    ...(use.namespace !== undefined && { namespace: use.namespace }),
    ...{ name: use.tool, arguments: JSON.stringify(use.input) },
  };
  send("response.output_item.done", { item: call ?? text });
  const usage = { input_tokens: 1, output_tokens: 1, total_tokens: 2 };
  send("response.completed", { response: { id, usage } });
}

/** Reads the contents of the Gemini API as messages; each result of a tool is one. */
function readGemini({ contents, tools }: JsonObject): ModelRequest {
  const messages = objectsIn(contents).flatMap(({ role, parts }) => {
    const results = objectsIn(parts).flatMap(({ functionResponse }) => functionResponse ?? []);
    if (results.length > 0) return [{ role: "tool", content: JSON.stringify(results) }];
    return [{ role: role === "model" ? "assistant" : String(role), content: parts }];
  });
  const declared = objectsIn(tools).flatMap(({ functionDeclarations }) => objectsIn(functionDeclarations));
  return { model: "", messages, tools: declared };
}

/** Answers as the Gemini API does. */
function replyGemini(...[response, , id, use]: Parameters<Reply>): void {
  const call = use && { functionCall: { id: use.id ?? `call_${id}`, name: use.tool, args: use.input } };
  const content = { role: "model", parts: [call ?? { text: "done" }] };
  const usageMetadata = { promptTokenCount: 1, candidatesTokenCount: 1, totalTokenCount: 2 };
  const candidates = [{ content, finishReason: "STOP", index: 0 }];
  response.write(`data: ${JSON.stringify({ candidates, usageMetadata, modelVersion: "m" })}\n\n`);
}

const objectsIn = (value: JsonValue | undefined): JsonObject[] =>
  (Array.isArray(value) ? value : []).filter((item) => isObject(item));
