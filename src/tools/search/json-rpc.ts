import type { JsonObject } from "@bufbuild/protobuf";
import * as z from "zod";
import { ToolFailure } from "../../tool/errors.ts";
import type { SearchAnswer, SearchRequest } from "./provider.ts";

/** Makes the request that calls a tool of an MCP server by one JSON-RPC message, without a session. */
export function toolRequest(name: string, args: JsonObject, headers: Readonly<Record<string, string>>): SearchRequest {
  return {
    path: "",
    headers: { ...headers, accept: "application/json, text/event-stream" },
    json: { jsonrpc: "2.0", id: 1, method: "tools/call", params: { name, arguments: args } },
  };
}

const message = z.object({
  id: z.literal(1),
  error: z.object({ code: z.number() }).nullish(),
  result: z
    .object({
      content: z.array(z.object({ type: z.string(), text: z.string().nullish() })),
      isError: z.boolean().nullish(),
    })
    .nullish(),
});

/** Reads the text of the tool's result, from JSON or the first fitting event of a stream. */
export async function readToolText(answer: SearchAnswer): Promise<string> {
  const { result, error } = message.parse(await responseOf(answer));
  // The message of the error is left out: it is untrusted text.
  if (error) throw new ToolFailure(`Web search request failed (JSON-RPC error ${error.code}). Try another query.`);
  if (result?.isError) throw new ToolFailure("Web search request failed: the provider's tool reports an error.");
  if (!result) throw new Error("neither result nor error");
  return result.content.map(({ text }) => text ?? "").join("\n");
}

async function responseOf(answer: SearchAnswer): Promise<unknown> {
  if (!answer.isEventStream) return await answer.json();
  for await (const { data } of answer.events()) {
    const value: unknown = JSON.parse(data);
    // Notifications of the server precede the response.
    if (message.safeParse(value).success) return value;
  }
  throw new Error("the stream has no response");
}
