import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { onTestFinished } from "vitest";

/** A use of a tool that the model asks for. */
export interface ToolUse {
  tool: string;
  input: Record<string, unknown>;
}

/** The steps of each conversation, by a text of its first messages; the first entry that matches wins. */
export type Script = readonly (readonly [text: string, steps: readonly ToolUse[]])[];

/** A model of a script. */
export interface MockModel {
  readonly url: string;
  /** The results of tools that the agent sent to it, as JSON, in order. */
  readonly results: readonly string[];
}

interface ModelRequest {
  model: string;
  messages: readonly { role: string; content: unknown }[];
  tools?: readonly unknown[];
}

/** Writes a response: a use of a tool, or the text "done". */
type Reply = (response: ServerResponse, request: ModelRequest, id: string, use: ToolUse | undefined) => void;

/** Serves the Anthropic Messages API for one test: asks for each step of the script, then says "done". */
export function serveAnthropic(script: Script): Promise<MockModel> {
  return serveModel(script, (response, { model }, id, use) => {
    const send = (type: string, data: object) =>
      response.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`);
    const usage = { input_tokens: 1, output_tokens: 1 };
    const message = { id: `msg_${id}`, type: "message", role: "assistant", model, content: [], usage };
    send("message_start", { message: { ...message, stop_reason: null, stop_sequence: null } });
    const block = use ? { type: "tool_use", id: `toolu_${id}`, name: use.tool, input: {} } : { type: "text", text: "" };
    send("content_block_start", { index: 0, content_block: block });
    const delta = use
      ? { type: "input_json_delta", partial_json: JSON.stringify(use.input) }
      : { type: "text_delta", text: "done" };
    send("content_block_delta", { index: 0, delta });
    send("content_block_stop", { index: 0 });
    send("message_delta", { delta: { stop_reason: use ? "tool_use" : "end_turn", stop_sequence: null }, usage });
    send("message_stop", {});
  });
}

/** Serves OpenAI's chat completions for one test: asks for each step of the script, then says "done". */
export function serveOpenAi(script: Script): Promise<MockModel> {
  return serveModel(script, (response, { model }, id, use) => {
    const send = (delta: object, finish_reason: string | null = null) => {
      const choices = [{ index: 0, delta, finish_reason }];
      const chunk = { id, object: "chat.completion.chunk", created: 1, model, choices };
      response.write(`data: ${JSON.stringify(chunk)}\n\n`);
    };
    const call = (fn: ToolUse) => ({ name: fn.tool, arguments: JSON.stringify(fn.input) });
    if (use)
      send({ role: "assistant", tool_calls: [{ index: 0, id: `call_${id}`, type: "function", function: call(use) }] });
    else send({ role: "assistant", content: "done" });
    send({}, use ? "tool_calls" : "stop");
    response.write("data: [DONE]\n\n");
  });
}

async function serveModel(script: Script, reply: Reply): Promise<MockModel> {
  const results: string[] = [];
  let count = 0;
  const server = createServer(async (request, response) => {
    if (request.method !== "POST" || request.url?.includes("count_tokens")) return void response.writeHead(404).end();
    const body = await readJson(request);
    const last = JSON.stringify(body.messages.at(-1));
    if (/"tool_result"|"role":"tool"/.test(last)) results.push(last);
    response.writeHead(200, { "content-type": "text/event-stream" });
    reply(response, body, `${process.pid}_${count++}`, nextStep(script, body));
    response.end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => {
    server.close();
    server.closeAllConnections();
  });
  const address = server.address();
  return { url: `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`, results };
}

/** A request without tools is for a title or a summary; otherwise the assistant's messages count the steps that were taken. */
function nextStep(script: Script, { messages, tools = [] }: ModelRequest): ToolUse | undefined {
  if (tools.length === 0) return undefined;
  const first = JSON.stringify(messages.filter(({ role }) => role === "user").slice(0, 1));
  const steps = script.find(([text]) => first.includes(text))?.[1] ?? [];
  return steps[messages.filter(({ role }) => role === "assistant").length];
}

async function readJson(request: IncomingMessage): Promise<ModelRequest> {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece);
  return JSON.parse(Buffer.concat(pieces).toString());
}
